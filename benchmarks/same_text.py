"""Whether the text stays the same, whatever is drafted and verified: in float32, token for token.

``python -m benchmarks.same_text DRAFTER ... --prompts FILE.jsonl ...`` compares greedy text under standard
verification, and with ``--rejection-sample-method coupled`` seeded text at temperature 1, over adaptive verification on
and off, the numbers of drafts and the concurrencies given, with the text of the target alone, one request at a time.
The costs that adaptive verification reckons with are made up, dear enough per token that it trims.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from adaverify.policy.cost import CostCurve, CostTable
from benchmarks.common import file_prompts, keep, open_threads, trained_drafter

COSTS = CostTable(CostCurve((1, 128), (20.0, 84.0)), CostCurve((1, 16), (2.0, 6.0)))
COUNTS = ("drafted", "admitted", "accepted")
SEEDS = 1000


def main() -> None:
    """Compare, print and keep; exit status 1 where a text differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafters", nargs="+", help="folders of trained drafters")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSONL files with turns")
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--limit", type=int, default=50, help="prompts of each file")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--num-speculative-tokens", type=int, nargs="+", default=[1, 4, 7])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rejection-sample-method", default="standard", choices=["standard", "coupled"])
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="same_text")
    args = parser.parse_args()
    args.target = args.target or str(default_model_path())
    with open_threads(args.threads):
        cases = compare(args)
    Console(width=120).print(as_table(cases))
    keep(
        args.name,
        {"rejection_sample_method": args.rejection_sample_method, "max_tokens": args.max_tokens, "cases": cases},
    )
    if any(case["different"] for case in cases):
        raise SystemExit(1)


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One case for each drafter, number of drafts, verification and concurrency."""
    alone = LLM(args.target, None, dtype="float32", max_num_seqs=max(args.concurrency))
    prompts = [prompt for file in args.prompts for prompt in file_prompts(file, args.limit, alone.tokenizer)]
    params = [sampling(args, SEEDS + number) for number in range(len(prompts))]
    expected = texts(alone, prompts, params, concurrency=1)
    cases = []
    for concurrency in args.concurrency[1:]:
        found = texts(alone, prompts, params, concurrency)
        cases.append({"drafter": "none", "concurrency": concurrency, **differences(found, expected)})
    for folder in args.drafters:
        for depth in args.num_speculative_tokens:
            speculative = trained_drafter(
                folder, args.target, depth, rejection_sample_method=args.rejection_sample_method
            )
            llm = LLM(args.target, speculative, dtype="float32", max_num_seqs=max(args.concurrency))
            for adaptive in (False, True):
                turn(llm, adaptive)
                for concurrency in args.concurrency:
                    before = llm.stats()
                    found = texts(llm, prompts, params, concurrency)
                    after = llm.stats()
                    counts = {name: sum(getattr(after, name)) - sum(getattr(before, name)) for name in COUNTS}
                    case = {"drafter": Path(folder).resolve().name, "num_speculative_tokens": depth}
                    case |= {"adaptive_verification": adaptive, "concurrency": concurrency}
                    cases.append({**case, **counts, **differences(found, expected)})
                    print(cases[-1], flush=True)
    return cases


def turn(llm: LLM, adaptive: bool) -> None:
    """Adaptive verification on or off, at the made-up costs."""
    speculation = llm.engine.speculation
    assert speculation is not None
    speculation.set_costs(COSTS)
    speculation.adaptive = adaptive


def texts(
    llm: LLM, prompts: Sequence[list[int]], params: Sequence[SamplingParams], concurrency: int
) -> list[list[int]]:
    """Tokens of each answer; all prompts at once fill the engine's seats, as one at a time do not."""
    if concurrency == llm.config.max_num_seqs:
        return [output.outputs[0].token_ids for output in llm.generate(list(prompts), list(params))]
    batches = range(0, len(prompts), concurrency)
    return [
        output.outputs[0].token_ids
        for start in batches
        for output in llm.generate(
            list(prompts[start : start + concurrency]), list(params[start : start + concurrency])
        )
    ]


def differences(found: list[list[int]], expected: list[list[int]]) -> dict[str, int]:
    """How many texts, of how many, are not the expected ones."""
    pairs = list(zip(found, expected, strict=True))
    return {"texts": len(pairs), "tokens": sum(map(len, expected)), "different": sum(a != b for a, b in pairs)}


def sampling(args: argparse.Namespace, seed: int) -> SamplingParams:
    """Greedy under standard verification, where only greedy text is one text."""
    if args.rejection_sample_method == "standard":
        return SamplingParams(temperature=0.0, max_tokens=args.max_tokens)
    return SamplingParams(temperature=1.0, top_p=0.95, max_tokens=args.max_tokens, seed=seed)


def as_table(cases: list[dict[str, Any]]) -> Table:
    """One row a case."""
    table = Table(title="Texts that differ from the target's own", title_justify="left")
    for heading in ("drafter", "K", "adaptive", "concurrency", *COUNTS, "texts", "different"):
        table.add_column(heading, justify="left" if heading == "drafter" else "right")
    keys = ("num_speculative_tokens", "adaptive_verification", "concurrency", *COUNTS, "texts", "different")
    for case in cases:
        table.add_row(case["drafter"], *(str(case.get(key, "")) for key in keys))
    return table


if __name__ == "__main__":
    main()
