"""Where the time of a step goes, without speculation and with a draft model.

The bar: outside the forward passes of target and drafter at most 15% of the step, and at most 2% for the policy.
Run with ``make bench-overhead``; ``ARGS='--model TARGET --draft DRAFTER'`` for a pair of one's own.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from transformers import AutoTokenizer

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from benchmarks.common import Spread, chat_prompts, keep, open_threads, truncated_drafter

PARTS = ("schedule", "policy", "target", "sample", "draft", "output")
FORWARDS = ("target", "draft forwards")


class ForwardClock:
    """Adds up the seconds inside a drafter's forward passes; the rest of drafting is scores and draws."""

    def __init__(self, llm: LLM) -> None:
        self.seconds = 0.0
        if llm.engine.speculation is not None:
            runner = llm.engine.speculation.drafter.runner
            self._forward, runner.forward = runner.forward, self

    def __call__(self, segments: Any) -> Any:
        """Run the pass, and count its time."""
        start = perf_counter()
        output = self._forward(segments)
        self.seconds += perf_counter() - start
        return output


def shares_of(spent: dict[str, float], draft_forwards: float) -> dict[str, float]:
    """Share of each part in the seconds spent, and of all that lies outside the forward passes."""
    total = sum(spent.values())
    parts = {part: spent[part] for part in PARTS if part != "draft"}
    parts |= {"draft forwards": draft_forwards, "draft rest": spent["draft"] - draft_forwards}
    shares = {part: value / total for part, value in parts.items()}
    return shares | {"outside forwards": sum(share for part, share in shares.items() if part not in FORWARDS)}


def measure(llm: LLM, args: argparse.Namespace, tokenizer: object) -> dict[str, Spread]:
    """Shares of `args.rounds` batches after one to warm up."""
    params = SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens, ignore_eos=True, seed=0)
    clock = ForwardClock(llm)
    rounds = []
    for number in range(args.rounds + 1):
        before, forwards_before = llm.stats().seconds, clock.seconds
        llm.generate(chat_prompts(tokenizer, args.concurrency, f"round {number}"), params)
        spent = {part: value - before[part] for part, value in llm.stats().seconds.items()}
        rounds.append(shares_of(spent, clock.seconds - forwards_before))
    return {part: Spread.of([shares[part] for shares in rounds[1:]]) for part in rounds[0]}


def main() -> None:
    """Measure, print and keep the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--draft", help="folder of the drafter (default: the target's first layers)")
    parser.add_argument("--draft-layers", type=int, default=6, help="how many of them")
    parser.add_argument("--num-speculative-tokens", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch threads")
    args = parser.parse_args()
    model = args.model or str(default_model_path())
    tokenizer = AutoTokenizer.from_pretrained(model)
    with (
        open_threads(args.threads),
        nullcontext(args.draft) if args.draft else truncated_drafter(model, args.draft_layers) as drafter,
    ):
        keep("overhead", {"shares": compare(model, drafter, args, tokenizer), "arguments": vars(args)})


def compare(model: str, drafter: str, args: argparse.Namespace, tokenizer: object) -> dict[str, object]:
    """Shares without speculation and with `drafter`."""
    speculation = {
        "method": "draft_model",
        "model": drafter,
        "num_speculative_tokens": args.num_speculative_tokens,
        "enable_adaptive_verification": True,
    }
    figures: dict[str, object] = {}
    for name, config in {"without speculation": None, "draft_model with adaptive verification": speculation}.items():
        llm = LLM(model=model, max_num_seqs=args.concurrency, dtype="bfloat16", speculative_config=config)
        shares = measure(llm, args, tokenizer)
        print(f"\n{name}: share of a step, median (lowest to highest)")
        for part, share in shares.items():
            print(f"  {part:18}{100 * share.median:6.2f}%  ({100 * share.low:.2f}% to {100 * share.high:.2f}%)")
        figures[name] = {part: vars(share) for part, share in shares.items()}
    return figures


if __name__ == "__main__":
    main()
