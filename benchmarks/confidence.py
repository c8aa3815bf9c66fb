"""A DSpark drafter's own confidence head against the estimator that learns while serving, in pairs.

``python -m benchmarks.confidence DRAFTER --prompts FILE.jsonl`` serves the same prompts with adaptive verification by
either, with one table of measured costs, at temperature 1 with top-p .95. The estimator goes on learning from round to
round, as it does in a server; the head, which was trained, learns nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from adaverify.engine.profiling import profile_costs
from adaverify.lab.acceptance import Acceptance, measure_acceptance
from benchmarks.common import Spread, file_prompts, in_pairs, keep, open_threads, trained_drafter

ARMS = ("head", "estimator")
COUNTS = ("drafted", "admitted", "accepted")


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", help="folder of a DSpark drafter with a confidence head")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL file with turns")
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-speculative-tokens", type=int, default=7, help="fewer if a block holds fewer")
    parser.add_argument("--scale", action="store_true", help="correct the head by the checkpoint's temperatures")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="confidence")
    args = parser.parse_args()
    if args.pairs < 3:
        parser.error("--pairs must be 3 or more")
    target = args.target or str(default_model_path())
    with open_threads(args.threads):
        figures = compare(target, args)
        Console(width=120).print(as_table(figures))
        keep(args.name, figures)


def compare(target: str, args: argparse.Namespace) -> dict[str, Any]:
    """Both arms over all pairs, after a run of each to warm up."""
    llms = {arm: load(arm, target, args) for arm in ARMS}
    costs = profile_costs(llms["head"].engine)
    for llm in llms.values():
        llm.engine.speculation.adaptive = True
        llm.engine.speculation.set_costs(costs)
    prompts = file_prompts(args.prompts, args.limit, llms["head"].tokenizer)
    runs: dict[str, list[Acceptance]] = {arm: [] for arm in ARMS}

    def answer(arm: str, seed: int) -> float:
        params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=args.max_tokens, seed=seed)
        runs[arm].append(measure_acceptance(llms[arm], prompts, params))
        return runs[arm][-1].tokens_per_second

    for arm in ARMS:
        answer(arm, args.pairs)
        runs[arm].clear()
    # a pair shares its seed
    speeds = in_pairs({arm: lambda tag, arm=arm: answer(arm, int(tag.split()[1])) for arm in ARMS}, args.pairs)
    ratios = [head / estimator for head, estimator in zip(*(speeds[arm] for arm in ARMS), strict=True)]
    return {
        "target": Path(target).name,
        "drafter": Path(args.drafter).resolve().name,
        "prompts": len(prompts),
        "concurrency": args.concurrency,
        "max_tokens": args.max_tokens,
        "num_speculative_tokens": llms["head"].config.speculative_config.num_speculative_tokens,
        "scaled_head": args.scale,
        "costs": costs.to_dict(),
        "arms": {arm: summary(runs[arm]) for arm in ARMS},
        "head_over_estimator": vars(Spread.of(ratios)),
    }


def load(arm: str, target: str, args: argparse.Namespace) -> LLM:
    """An engine whose adaptive verification is turned on later, so that it does not measure costs of its own."""
    speculative = trained_drafter(
        args.drafter,
        target,
        args.num_speculative_tokens,
        draft_confidence=arm,
        scale_draft_confidence=args.scale and arm == "head",
    )
    # without prefix caching every run computes its prompts
    return LLM(target, speculative, max_num_seqs=args.concurrency, enable_prefix_caching=False)


def summary(runs: list[Acceptance]) -> dict[str, Any]:
    """Speed, and what became of the drafts, over the runs of one arm."""
    return {
        "tokens_per_second": vars(Spread.of([run.tokens_per_second for run in runs])),
        **{f"{count}_per_round": vars(Spread.of([run.mean(count) for run in runs])) for count in COUNTS},
        "runs": [run.to_dict() for run in runs],
    }


def as_table(figures: dict[str, Any]) -> Table:
    """Medians, with the lowest and highest."""
    ratio = Spread(**figures["head_over_estimator"])
    table = Table(title=f"tokens/s of the head over the estimator's: {ratio}", title_justify="left")
    for heading in ("confidence", "tokens/s", *(f"{count} a round" for count in COUNTS)):
        table.add_column(heading, justify="right")
    for arm, figure in figures["arms"].items():
        names = ("tokens_per_second", *(f"{count}_per_round" for count in COUNTS))
        table.add_row(arm, *(str(Spread(**figure[name])) for name in names))
    return table


if __name__ == "__main__":
    main()
