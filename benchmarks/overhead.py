"""Where the time of a step goes, without speculation and with adaptive verification.

The bars: outside the forward passes of target and drafter at most 8% of the step with 16 and 64 requests, at most 2%
for the policy. Run with ``make bench-overhead``; ``ARGS='--target TARGET --drafter FOLDER'`` for models of your own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from adaverify import LLM, SamplingParams
from adaverify.engine.default_drafter import default_drafter
from adaverify.engine.default_model import default_model_path
from benchmarks.common import Spread, chat_prompts, keep, open_threads, trained_drafter

PARTS = ("schedule", "policy", "target", "sample", "draft", "output")
FORWARDS = ("target", "draft forwards")
# What of a trained drafter is its network, by name; the rest of drafting is laws and draws.
NETWORK = ("forward", "project", "context", "fill", "head", "select", "markov_bias", "confidence")


class ForwardClock:
    """Adds up the seconds inside a drafter's network."""

    def __init__(self, llm: LLM) -> None:
        self.seconds = 0.0
        self._inside = False
        if llm.engine.speculation is not None:
            drafter: Any = llm.engine.speculation.drafter
            network = drafter.runner if hasattr(drafter, "runner") else drafter.model
            for name in NETWORK:
                if hasattr(network, name):
                    setattr(network, name, self._timed(getattr(network, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return call(*args, **kwargs)
            self._inside = True
            start = perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - start
                self._inside = False

        return timed


def shares_of(spent: dict[str, float], draft_forwards: float) -> dict[str, float]:
    """Share of each part in the seconds spent, and of all that lies outside the forward passes."""
    total = sum(spent.values())
    parts = {part: spent[part] for part in PARTS if part != "draft"}
    parts |= {"draft forwards": draft_forwards, "draft rest": spent["draft"] - draft_forwards}
    shares = {part: value / total for part, value in parts.items()}
    return shares | {"outside forwards": sum(share for part, share in shares.items() if part not in FORWARDS)}


def measure(llm: LLM, clock: ForwardClock, concurrency: int, args: argparse.Namespace) -> dict[str, Spread]:
    """Shares of `args.rounds` batches after one to warm up."""
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_tokens, ignore_eos=True, seed=0
    )
    rounds = []
    for number in range(args.rounds + 1):
        before, forwards_before = llm.stats().seconds, clock.seconds
        llm.generate(chat_prompts(llm.tokenizer, concurrency, f"round {number}"), params)
        spent = {part: value - before[part] for part, value in llm.stats().seconds.items()}
        rounds.append(shares_of(spent, clock.seconds - forwards_before))
    return {part: Spread.of([shares[part] for shares in rounds[1:]]) for part in rounds[0]}


def main() -> None:
    """Measure, print and keep the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--drafter", help="folder of a trained drafter (default: that of the default target)")
    parser.add_argument("--num-speculative-tokens", type=int, default=5, help="with --drafter")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch threads")
    args = parser.parse_args()
    target = args.target or str(default_model_path())
    with open_threads(args.threads):
        keep("overhead", {"shares": compare(target, args), "arguments": vars(args)})


def compare(target: str, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Shares by concurrency without speculation and with the drafter."""
    drafter = (
        trained_drafter(args.drafter, target, args.num_speculative_tokens, enable_adaptive_verification=True)
        if args.drafter
        else default_drafter(on_missing=sys.exit)
    )
    figures: dict[str, dict[str, Any]] = {}
    for name, config in {"no speculation": None, "adaptive verification": drafter}.items():
        llm = LLM(target, config, max_num_seqs=max(args.concurrency))
        clock = ForwardClock(llm)
        figures[name] = {}
        for concurrency in args.concurrency:
            shares = measure(llm, clock, concurrency, args)
            print(f"\n{name}, {concurrency} requests: share of a step, median (lowest to highest)")
            for part, share in shares.items():
                print(f"  {part:18}{100 * share.median:6.2f}%  ({100 * share.low:.2f}% to {100 * share.high:.2f}%)")
            figures[name][str(concurrency)] = {part: vars(share) for part, share in shares.items()}
    return figures


if __name__ == "__main__":
    main()
