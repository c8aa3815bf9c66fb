"""What a block of drafts costs beside a pass of the target, for each drafter and batch size.

``python -m benchmarks.draft_costs DRAFTER ...`` times ``propose`` for 7 drafts, greedily and at temperature 1, each
time right after a pass of the target over 16 packed tokens (two requests with seven drafts each), on the engine's own
models and stores. All requests hold 256 tokens, of which the drafter has yet to read one, and share their KV blocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from adaverify.config import EngineConfig
from adaverify.engine.batch import Segment
from adaverify.engine.default_model import default_model_path
from adaverify.engine.engine import Engine
from adaverify.engine.factory import build_engine
from adaverify.engine.profiling import draft_round
from benchmarks.common import Spread, keep, open_threads, seconds, trained_drafter

CONTEXT, TARGET_TOKENS, ROW_TOKENS = 256, 16, 8
TEMPERATURES = (0.0, 1.0)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafters", nargs="+", help="folders of trained drafters")
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--num-speculative-tokens", type=int, default=7, help="fewer where a block holds fewer")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--passes", type=int, default=15)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="draft_costs")
    args = parser.parse_args()
    target = args.target or str(default_model_path())
    with open_threads(args.threads):
        engines = {Path(folder).resolve().name: load(folder, target, args) for folder in args.drafters}
        rows = measure(engines, args.batch, args.passes)
        Console(width=120).print(as_table(rows))
        shape = {"target_tokens": TARGET_TOKENS, "context": CONTEXT, "passes": args.passes}
        keep(args.name, {"target": Path(target).name, **shape, "rows": rows})


def load(folder: str, target: str, args: argparse.Namespace) -> Engine:
    """An engine with the drafter, and no more memory than one context needs."""
    config = EngineConfig.build(
        model=target,
        speculative_config=trained_drafter(folder, target, args.num_speculative_tokens),
        max_num_seqs=max(args.batch),
        max_model_len=2 * CONTEXT,
        num_kv_blocks=64,
    )
    return build_engine(config, profile=False)


def measure(engines: dict[str, Engine], batches: list[int], passes: int) -> list[dict[str, Any]]:
    """Every case once a pass, each after a pass of its target; the order turns round from pass to pass."""
    targets, cases = {}, {}
    for name, engine in engines.items():
        assert engine.speculation is not None
        blocks = engine.pool.allocate(engine.pool.blocks_for(CONTEXT + 32))
        targets[name] = target_pass(engine, blocks)
        for batch in batches:
            for temperature in TEMPERATURES:
                cases[name, batch, temperature] = draft_block(engine, batch, temperature, blocks)
    drafts: dict[tuple[str, int, float], list[float]] = {case: [] for case in cases}
    before: dict[tuple[str, int, float], list[float]] = {case: [] for case in cases}
    for number in range(1 + passes):
        for case in cases if number % 2 == 0 else reversed(cases):
            target_seconds, _ = seconds(targets[case[0]])
            draft_seconds, _ = seconds(cases[case])
            if number > 0:  # the first pass warms up
                before[case].append(1e3 * target_seconds)
                drafts[case].append(1e3 * draft_seconds)
        print(f"pass {number} of {passes}", flush=True)
    return [as_row(engines[case[0]], case, drafts[case], before[case]) for case in cases]


def as_row(engine: Engine, case: tuple[str, int, float], drafts: list[float], targets: list[float]) -> dict[str, Any]:
    """Milliseconds of one case and of the target passes before it, and their ratios, pair by pair."""
    assert engine.config.speculative_config is not None
    ratios = [draft / target for draft, target in zip(drafts, targets, strict=True)]
    return {
        "drafter": case[0],
        "num_speculative_tokens": engine.config.speculative_config.num_speculative_tokens,
        "batch": case[1],
        "temperature": case[2],
        "draft_ms": vars(Spread.of(drafts)),
        "target_ms": vars(Spread.of(targets)),
        "ratio": vars(Spread.of(ratios)),
    }


def target_pass(engine: Engine, blocks: list[int]) -> Callable[[], None]:
    """A pass of the target over ``TARGET_TOKENS`` packed tokens, all with logits."""
    segments = [Segment([0] * ROW_TOKENS, CONTEXT, blocks, ROW_TOKENS)] * (TARGET_TOKENS // ROW_TOKENS)

    def run() -> None:
        engine.runner.forward(segments)
        _wait(engine)

    return run


def draft_block(engine: Engine, batch: int, temperature: float, blocks: list[int]) -> Callable[[], None]:
    """One block of drafts for ``batch`` requests."""
    draft = draft_round(engine, batch, CONTEXT, blocks, temperature)

    def run() -> None:
        draft()
        _wait(engine)

    return run


def as_table(rows: list[dict[str, Any]]) -> Table:
    """Medians, with the lowest and highest."""
    table = Table(title=f"A block of drafts beside a target pass of {TARGET_TOKENS} tokens", title_justify="left")
    for heading in ("drafter", "K", "batch", "T", "draft ms", "target ms", "draft / target"):
        table.add_column(heading, justify="left" if heading == "drafter" else "right")
    for row in rows:
        spreads = [_spread(row[name], digits) for name, digits in (("draft_ms", 1), ("target_ms", 1), ("ratio", 2))]
        counts = [str(row["num_speculative_tokens"]), str(row["batch"]), f"{row['temperature']:g}"]
        table.add_row(row["drafter"], *counts, *spreads)
    return table


def _spread(spread: dict[str, Any], digits: int) -> str:
    return f"{spread['median']:.{digits}f} ({spread['low']:.{digits}f} to {spread['high']:.{digits}f})"


def _wait(engine: Engine) -> None:
    if engine.runner.device.type == "cuda":
        torch.cuda.synchronize(engine.runner.device)


if __name__ == "__main__":
    main()
