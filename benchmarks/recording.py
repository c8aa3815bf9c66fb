"""What recording a trace costs: throughput with a recorder over throughput without, in pairs.

``python -m benchmarks.recording --drafter DRAFTER --prompts FILE.jsonl`` answers the same prompts with one engine, with
adaptive verification, once recorded and once not.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from adaverify.lab.acceptance import measure_acceptance
from adaverify.lab.trace.recorder import Recorder
from benchmarks.common import Spread, file_prompts, in_pairs, keep, open_threads, trained_drafter


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", required=True, help="folder of a trained drafter")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL file with turns")
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--num-speculative-tokens", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--overlap", action="store_true", help="record 1 - TV(p, q) too")
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="recording")
    args = parser.parse_args()
    with open_threads(args.threads):
        figures = compare(args)
    print(f"recorded / not recorded: {Spread(**figures['recorded_over_plain'])}")
    keep(args.name, figures)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of both arms over all pairs."""
    target = args.target or str(default_model_path())
    speculative = trained_drafter(args.drafter, target, args.num_speculative_tokens, enable_adaptive_verification=True)
    llm = LLM(target, speculative, max_num_seqs=args.concurrency, enable_prefix_caching=False)
    prompts = file_prompts(args.prompts, args.limit, llm.tokenizer)

    def plain(tag: str) -> float:
        # the rounds of a pair share their seed; a warm-up has one of its own
        params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=args.max_tokens, seed=int(tag.split()[-1]))
        return measure_acceptance(llm, prompts, params).tokens_per_second

    def recorded(tag: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(llm.engine, Path(folder), wants_overlaps=args.overlap)
            speed = plain(tag)
            recorder.close()
        return speed

    recorded("warm-up 99")
    speeds = in_pairs({"plain": plain, "recorded": recorded}, args.pairs)
    ratios = [one / other for one, other in zip(speeds["recorded"], speeds["plain"], strict=True)]
    return {
        "target": Path(target).name,
        "drafter": Path(args.drafter).resolve().name,
        "concurrency": args.concurrency,
        "num_speculative_tokens": llm.config.speculative_config.num_speculative_tokens,
        "overlap": args.overlap,
        "tokens_per_second": speeds,
        "recorded_over_plain": vars(Spread.of(ratios)),
    }


if __name__ == "__main__":
    main()
