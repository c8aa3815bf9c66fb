"""What weights and KV pool in huge pages are worth: steps of two engines, one in pages of 4 KiB, in pairs.

``python -m benchmarks.huge_pages --concurrency 1 16``; on a system that gives no huge pages both are alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from adaverify import LLM, SamplingParams
from adaverify.engine import huge_pages
from adaverify.engine.default_model import default_model_path
from benchmarks.common import Spread, chat_prompts, in_pairs, keep, open_threads


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="huge_pages")
    args = parser.parse_args()
    target = args.target or str(default_model_path())
    with open_threads(args.threads):
        engines = {"huge": LLM(target, None, max_num_seqs=max(args.concurrency))}
        with without_advice():
            engines["small"] = LLM(target, None, max_num_seqs=max(args.concurrency))
        figures = {}
        for concurrency in args.concurrency:
            steps = in_pairs(
                {name: Steps(llm, concurrency, args.max_tokens) for name, llm in engines.items()}, args.pairs
            )
            ratio = Spread.of([huge / small for huge, small in zip(steps["huge"], steps["small"], strict=True)])
            figures[str(concurrency)] = {
                "ms_per_step": {n: asdict(Spread.of(v)) for n, v in steps.items()},
                "ratio": asdict(ratio),
            }
            print(f"{concurrency} requests: a step in huge pages takes {ratio} of one in small pages")
    keep(args.name, {"by_concurrency": figures})


class Steps:
    """Milliseconds a step, of a batch that decodes."""

    def __init__(self, llm: LLM, concurrency: int, max_tokens: int) -> None:
        self._llm = llm
        self._concurrency = concurrency
        self._params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=max_tokens, ignore_eos=True, seed=0)

    def __call__(self, tag: str) -> float:
        """Run a batch."""
        before = self._llm.stats()
        self._llm.generate(chat_prompts(self._llm.tokenizer, self._concurrency, tag), self._params)
        after = self._llm.stats()
        spent = sum(after.seconds.values()) - sum(before.seconds.values())
        return 1e3 * spent / (after.num_steps - before.num_steps)


@contextmanager
def without_advice() -> Iterator[None]:
    """Engines made inside get the pages that the system gives unasked."""
    advise, huge_pages._advise = huge_pages._advise, lambda *area: None
    try:
        yield
    finally:
        huge_pages._advise = advise


if __name__ == "__main__":
    main()
