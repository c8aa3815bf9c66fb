"""What the target accepts of each drafter, by position, and the speed, with every draft verified.

``python -m benchmarks.drafters DRAFTER ... --prompts FILE.jsonl ...`` loads one drafter after the other and answers the
first turns of each file, greedily and at temperature 1 with top-p .95. The speeds of different drafters are not paired.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from adaverify.lab.acceptance import measure_acceptance
from benchmarks.common import file_prompts, keep, open_threads, trained_drafter

LAWS: list[dict[str, Any]] = [{"temperature": 0.0, "top_p": 1.0}, {"temperature": 1.0, "top_p": 0.95}]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafters", nargs="+", help="folders of trained drafters")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSONL files with turns")
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--limit", type=int, default=40, help="prompts of each file")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--num-speculative-tokens", type=int, default=7, help="fewer where a block holds fewer")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="drafters")
    args = parser.parse_args()
    target = args.target or str(default_model_path())
    with open_threads(args.threads):
        runs = [run for folder in args.drafters for run in measure(folder, target, args)]
        Console(width=150).print(as_table(runs))
        limits = {"concurrency": args.concurrency, "limit": args.limit, "max_tokens": args.max_tokens}
        keep(args.name, {"target": Path(target).name, **limits, "adaptive_verification": False, "runs": runs})


def measure(folder: str, target: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One run of a drafter for each file and temperature."""
    speculative = trained_drafter(folder, target, args.num_speculative_tokens)
    # no prefix caching: a second run over a file must not find the first one's prompts
    llm = LLM(target, speculative, max_num_seqs=args.concurrency, enable_prefix_caching=False)
    prompts = {file.stem: file_prompts(file, args.limit, llm.tokenizer) for file in args.prompts}
    measure_acceptance(llm, next(iter(prompts.values()))[: args.concurrency], SamplingParams(max_tokens=8, seed=1))
    runs = []
    for name, texts in prompts.items():
        for law in LAWS:
            measured = measure_acceptance(llm, texts, SamplingParams(**law, max_tokens=args.max_tokens, seed=0))
            run = {
                "drafter": Path(folder).resolve().name,
                "method": speculative["method"],
                "num_speculative_tokens": speculative["num_speculative_tokens"],
                "prompts": name,
                "num_prompts": len(texts),
                **law,
                **measured.to_dict(),
            }
            case = f"{run['drafter']}, {name}, T={law['temperature']:g}"
            print(f"{case}: {run['accepted_per_round']:.2f} accepted a round, {run['tokens_per_second']:.1f} tokens/s")
            runs.append(run)
    return runs


def as_table(runs: list[dict[str, Any]]) -> Table:
    """One row a run."""
    table = Table(title="Accepted drafts by position, every draft verified", title_justify="left")
    for heading in ("drafter", "prompts", "T", "accepted / reached", "accepted / rounds", "a round", "tokens/s"):
        table.add_column(heading, justify="left" if heading in ("drafter", "prompts") else "right", no_wrap=True)
    for run in runs:
        table.add_row(
            run["drafter"],
            run["prompts"],
            f"{run['temperature']:g}",
            _shares(run["accepted_given_reached"]),
            _shares(run["accepted_by_rounds"]),
            f"{run['accepted_per_round']:.2f}",
            f"{run['tokens_per_second']:.1f}",
        )
    return table


def _shares(values: list[float | None]) -> str:
    return " ".join(" - " if value is None else f"{value:.2f}".lstrip("0") or "0" for value in values)


if __name__ == "__main__":
    main()
