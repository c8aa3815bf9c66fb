"""What choosing the depth of drafting brings: the same server with and without it, in pairs.

``python -m benchmarks.draft_depth --drafter DIR --prompts FILE.jsonl ...`` builds two engines that differ in
``adaptive_draft_depth`` alone and share one cost table, and has them answer the prompts of each file in turns, at each
concurrency. The bar: at least 1.08 times the tokens per second over all files, and never below .99 on one. Tokens per
second of processor time are kept beside those by the clock, for a machine that has other work to do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

from rich.console import Console
from rich.table import Table

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from adaverify.lab.acceptance import Acceptance, measure_acceptance
from benchmarks.common import Spread, file_prompts, in_pairs, keep, open_threads, trained_drafter

WHOLE, ADAPTIVE = "whole blocks", "adaptive depth"
BAR, FLOOR = 1.08, 0.99


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", required=True, help="folder of a trained drafter")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSONL files with turns")
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--limit", type=int, default=2, help="prompts a file, for each seat; at least 8")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--num-speculative-tokens", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--rejection-sample-method", default="standard", choices=["standard", "coupled"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="draft_depth")
    args = parser.parse_args()
    target = args.target or str(default_model_path())
    with open_threads(args.threads):
        batches = [compare(target, concurrency, args) for concurrency in args.concurrency]
    Console(width=120).print(as_table(batches))
    figures = {
        "target": Path(target).name,
        "drafter": Path(args.drafter).resolve().name,
        "num_speculative_tokens": args.num_speculative_tokens,
        "temperature": args.temperature,
        "rejection_sample_method": args.rejection_sample_method,
        "bar": {"all_datasets": BAR, "each_dataset": FLOOR},
        "batches": batches,
    }
    keep(args.name, figures)


def compare(target: str, concurrency: int, args: argparse.Namespace) -> dict[str, Any]:
    """Both arms on every file, at one concurrency."""
    whole, adaptive = (engine(target, concurrency, args, depth) for depth in (False, True))
    assert whole.engine.speculation is not None
    assert adaptive.engine.speculation is not None
    costs = whole.engine.speculation.cost_table
    assert costs is not None
    adaptive.engine.speculation.set_costs(costs)
    arms = {WHOLE: whole, ADAPTIVE: adaptive}
    limit = max(8, args.limit * concurrency)
    prompts = {file.stem: file_prompts(file, limit, whole.tokenizer) for file in args.prompts}
    for llm in arms.values():
        for each in prompts.values():
            measure_acceptance(llm, each, sampling(args, seed=99))
    print(f"concurrency {concurrency}: both have warmed up", flush=True)
    datasets = {name: measure(arms, each, args) for name, each in prompts.items()}
    tokens, clock, processor = (total(datasets, key) for key in ("tokens", "seconds", "processor_seconds"))
    return {
        "concurrency": concurrency,
        "speedup": vars(Spread.of(quotients(tokens, clock))),
        "processor_speedup": vars(Spread.of(quotients(tokens, processor))),
        "datasets": datasets,
        "costs": costs.to_dict(),
    }


def total(datasets: dict[str, dict[str, Any]], key: str) -> dict[str, list[float]]:
    """What all files add up to, by arm and pair."""
    return {
        name: [sum(values) for values in zip(*(dataset[key][name] for dataset in datasets.values()), strict=True)]
        for name in (WHOLE, ADAPTIVE)
    }


def quotients(tokens: dict[str, list[float]], seconds: dict[str, list[float]]) -> list[float]:
    """Tokens a second with adaptive depth over those without, pair by pair."""
    rates = {
        name: [count / each for count, each in zip(tokens[name], seconds[name], strict=True)]
        for name in (WHOLE, ADAPTIVE)
    }
    return [one / other for one, other in zip(rates[ADAPTIVE], rates[WHOLE], strict=True)]


def engine(target: str, concurrency: int, args: argparse.Namespace, depth: bool) -> LLM:
    """A server's engine with adaptive verification, and with or without adaptive depth."""
    speculative = trained_drafter(
        args.drafter,
        target,
        args.num_speculative_tokens,
        enable_adaptive_verification=True,
        adaptive_draft_depth=depth,
        rejection_sample_method=args.rejection_sample_method,
    )
    return LLM(target, speculative, max_num_seqs=concurrency, enable_prefix_caching=False)


def measure(arms: dict[str, LLM], prompts: list[list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """One file's pairs."""
    seen: dict[str, list[Acceptance]] = {name: [] for name in arms}
    processor: dict[str, list[float]] = {name: [] for name in arms}
    before = {name: llm.stats() for name, llm in arms.items()}

    def run(name: str) -> Callable[[str], float]:
        def measured(tag: str) -> float:
            # the rounds of a pair share their seed
            start = process_time()
            result = measure_acceptance(arms[name], prompts, sampling(args, int(tag.split()[-1])))
            processor[name].append(process_time() - start)
            seen[name].append(result)
            return result.tokens_per_second

        return measured

    speeds = in_pairs({name: run(name) for name in arms}, args.pairs)
    after = {name: llm.stats() for name, llm in arms.items()}
    tokens, seconds = (
        {name: [getattr(result, part) for result in results] for name, results in seen.items()}
        for part in ("tokens", "seconds")
    )
    steps = {name: after[name].num_draftable_steps - before[name].num_draftable_steps for name in arms}
    return {
        "tokens_per_second": speeds,
        "speedup": vars(Spread.of(quotients(tokens, seconds))),
        "processor_speedup": vars(Spread.of(quotients(tokens, processor))),
        "tokens": tokens,
        "seconds": seconds,
        "processor_seconds": processor,
        "mean_depth": {
            name: (after[name].draft_depth_sum - before[name].draft_depth_sum) / max(1, steps[name]) for name in arms
        },
        "steps_without_drafts": {
            name: (after[name].num_undrafted_steps - before[name].num_undrafted_steps) / max(1, steps[name])
            for name in arms
        },
        "accepted_per_round": {
            name: sum(sum(r.accepted) for r in results) / max(1, sum(r.rounds for r in results))
            for name, results in seen.items()
        },
    }


def sampling(args: argparse.Namespace, seed: int) -> SamplingParams:
    """As asked for on the command line."""
    return SamplingParams(temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_tokens, seed=seed)


def as_table(batches: list[dict[str, Any]]) -> Table:
    """Medians, with the lowest and highest pair."""
    table = Table(title="Adaptive depth over whole blocks, tokens per second", title_justify="left")
    for heading in (
        "concurrency",
        "dataset",
        "speed-up",
        "by processor time",
        "depth",
        "without drafts",
        "accepted a round",
    ):
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    for batch in batches:
        for name, row in batch["datasets"].items():
            depth, accepted = (
                f"{row[key][WHOLE]:.2f} -> {row[key][ADAPTIVE]:.2f}" for key in ("mean_depth", "accepted_per_round")
            )
            without = f"{row['steps_without_drafts'][ADAPTIVE]:.1%}"
            ratios = str(Spread(**row["speedup"])), str(Spread(**row["processor_speedup"]))
            table.add_row(str(batch["concurrency"]), name, *ratios, depth, without, accepted)
        ratios = str(Spread(**batch["speedup"])), str(Spread(**batch["processor_speedup"]))
        table.add_row(str(batch["concurrency"]), "all", *ratios, "", "", "", end_section=True)
    return table


if __name__ == "__main__":
    main()
