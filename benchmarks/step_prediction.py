"""How well the cost of a step is known before it runs, while contexts grow: live costs beside the start-up table.

One batch of requests is answered to a fixed length, so that contexts grow from the prompt to about a thousand tokens.
Every step is predicted by what was learned from the steps before it, by the table measured at start, and by that table
times one factor that follows the steps; the error is that of the whole step, up to the start of the next. The bar: a
median absolute error of at most 10% for live costs.
Run with ``python -m benchmarks.step_prediction``; ``--drafter FOLDER`` for a trained drafter.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from adaverify.policy.step import StepReport
from benchmarks.common import ROOT, file_prompts, keep, open_threads, trained_drafter, truncated_drafter

STRETCHES = 4
# of the common factor: weight of a step, and the most it may change the logarithm before weighting
AVERAGING, MAX_STEP = 0.1, 0.3
COLUMNS = ("packed_tokens", "requests", "context_tokens", "prefill_tokens", "prefill_pairs", "depth")
TIMES = ("draft_ms", "verify_ms", "other_ms")


def main() -> None:
    """Run, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--drafter", help="folder of a trained drafter (default: the target's first layers)")
    parser.add_argument("--draft-layers", type=int, default=6, help="how many of them")
    parser.add_argument("--prompts", type=Path, default=ROOT.parent / "shared" / "data" / "gsm8k_test.jsonl")
    parser.add_argument("--num-speculative-tokens", type=int, default=7, help="fewer where a block holds fewer")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=900)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rejection-sample-method", choices=["standard", "coupled"], default="standard")
    parser.add_argument("--no-live-costs", action="store_true", help="trim by the start-up table")
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--rows", type=Path, help="write every step's size and times to this CSV file, too")
    parser.add_argument("--name", default="step_prediction")
    args = parser.parse_args()
    args.model = args.model or str(default_model_path())
    with (
        open_threads(args.threads),
        nullcontext() if args.drafter else truncated_drafter(args.model, args.draft_layers) as folder,
    ):
        llm = load(args, folder)
        reports = run(llm, args)
    if args.rows:
        write_rows(args.rows, reports)
    figures = summary(reports)
    show(figures)
    table = llm.engine.speculation.cost_table if llm.engine.speculation else None
    arguments = {name: value for name, value in vars(args).items() if name not in ("rows", "model", "prompts")}
    arguments |= {"model": Path(args.model).name, "prompts": args.prompts.name}
    arguments |= {"drafter": Path(args.drafter).name if args.drafter else f"first {args.draft_layers} layers"}
    keep(args.name, figures | {"startup_table": table.to_dict() if table else None, "arguments": arguments})


def load(args: argparse.Namespace, truncated: str | None) -> LLM:
    """The target with its drafter and adaptive verification; start-up costs are measured here."""
    more = {
        "enable_adaptive_verification": True,
        "live_costs": not args.no_live_costs,
        "rejection_sample_method": args.rejection_sample_method,
    }
    depth = args.num_speculative_tokens
    if args.drafter:
        speculation = trained_drafter(args.drafter, args.model, depth, **more)
    else:
        speculation = {"method": "draft_model", "model": truncated, "num_speculative_tokens": depth, **more}
    return LLM(
        args.model,
        speculative_config=speculation,
        dtype="bfloat16",
        max_num_seqs=args.concurrency,
        max_model_len=args.max_tokens + 1024,
    )


def run(llm: LLM, args: argparse.Namespace) -> list[StepReport]:
    """Answer the prompts, step by step; the reports of all steps in order."""
    prompts = file_prompts(args.prompts, args.concurrency, AutoTokenizer.from_pretrained(args.model))
    params = SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens, ignore_eos=True, seed=0)
    engine = llm.engine
    assert engine.speculation is not None
    costs = engine.speculation.live_costs
    assert costs is not None
    for number, prompt in enumerate(prompts):
        engine.add_request(prompt, params, str(number))
    reports: list[StepReport] = []
    while engine.has_unfinished:
        engine.step()
        # a step's whole time is known when the next one begins
        if costs.latest is not None and (not reports or costs.latest is not reports[-1]):
            reports.append(costs.latest)
            if len(reports) % 50 == 0:
                print(f"{len(reports)} steps, median error {costs.live_errors.median_percent:.1f}%", flush=True)
    return reports


def summary(reports: list[StepReport]) -> dict[str, Any]:
    """Median errors of the whole run, and of its stretches from first to last."""
    size = -(-len(reports) // STRETCHES)
    factors = common_factors(reports)
    starts = range(0, len(reports), size)
    stretches = [errors(reports[start : start + size], factors[start : start + size]) for start in starts]
    return {"steps": len(reports), **errors(reports, factors), "stretches": stretches}


def common_factors(reports: list[StepReport]) -> list[float]:
    """A simpler way to keep the table true: before each step, one factor for all sizes, averaged exponentially."""
    logarithms = [0.0]
    for report in reports[:-1]:
        off = math.log(report.time.total_ms / report.startup_ms) - logarithms[-1]
        logarithms.append(logarithms[-1] + AVERAGING * min(max(off, -MAX_STEP), MAX_STEP))
    return [math.exp(one) for one in logarithms]


def errors(reports: list[StepReport], factors: list[float]) -> dict[str, float]:
    """What the steps were and how they were predicted; errors in % of what was measured."""

    def absolute(predicted: float, report: StepReport) -> float:
        return 100 * abs(predicted / report.time.total_ms - 1)

    live = [absolute(report.live_ms, report) for report in reports]
    startup = [absolute(report.startup_ms, report) for report in reports]
    scaled = [absolute(factor * report.startup_ms, report) for factor, report in zip(factors, reports, strict=True)]
    return {
        "mean_context": statistics.fmean(report.size.mean_context for report in reports),
        "mean_packed_tokens": statistics.fmean(report.size.packed_tokens for report in reports),
        "median_step_ms": statistics.median(report.time.total_ms for report in reports),
        "median_error_percent_live": statistics.median(live),
        "median_error_percent_startup": statistics.median(startup),
        "median_error_percent_startup_scaled": statistics.median(scaled),
        "mean_error_percent_live": statistics.fmean(live),
        "mean_error_percent_startup": statistics.fmean(startup),
        "mean_error_percent_startup_scaled": statistics.fmean(scaled),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the medians, stretch by stretch."""
    print(f"\n{figures['steps']} steps; median absolute error of the predicted step time:")
    for name, part in [("all", figures), *((str(i + 1), part) for i, part in enumerate(figures["stretches"]))]:
        print(
            f"  {name:4} context {part['mean_context']:6.0f}  tokens {part['mean_packed_tokens']:6.1f}  "
            f"step {part['median_step_ms']:7.1f} ms  live {part['median_error_percent_live']:5.1f}%  "
            f"start-up {part['median_error_percent_startup']:5.1f}%  "
            f"scaled {part['median_error_percent_startup_scaled']:5.1f}%"
        )


def write_rows(file: Path, reports: list[StepReport]) -> None:
    """One line a step: its size, its times, both predictions."""
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*COLUMNS, *TIMES, "live_ms", "startup_ms"])
        for report in reports:
            sizes = [getattr(report.size, name) for name in COLUMNS]
            times = [round(getattr(report.time, name), 3) for name in TIMES]
            writer.writerow([*sizes, *times, round(report.live_ms, 3), round(report.startup_ms, 3)])


if __name__ == "__main__":
    main()
