"""Tokens per second without speculation, against transformers' own continuous batching.

Both arms get the same prompts, bfloat16 weights, thread count, number of requests at once and output length (greedy,
end of sequence ignored), and are measured in turns in one process. The other side's settings are searched first: each
of `PEER_SETTINGS` answers one batch and the fastest is kept. Compilation is not among them: on a CPU its cached
attention recompiles for every layer until torch gives up and runs uncompiled.

Run with ``make bench-throughput``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from adaverify import LLM, SamplingParams
from adaverify.engine.default_model import default_model_path
from benchmarks.common import Spread, chat_prompts, in_pairs, keep, open_threads, seconds

KV_TOKENS_PER_REQUEST = 320
PEER_SETTINGS = [
    {"attention": attention, "page_size": page_size, "max_batch_tokens": tokens}
    for attention, page_size, tokens in product(["sdpa", "paged|eager"], [16, 32], [128, 256])
]


def our_arm(model: str, concurrency: int, max_tokens: int) -> Callable[[list[list[int]]], int]:
    """Our engine as a function from prompts to the number of tokens generated."""
    llm = LLM(model=model, max_num_seqs=concurrency, dtype="bfloat16")
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)

    def generate(prompts: list[list[int]]) -> int:
        return sum(len(output.outputs[0].token_ids) for output in llm.generate(prompts, params))

    return generate


class Peer:
    """transformers' continuous batching with one setting, its manager kept between batches.

    Parameters
    ----------
    model : str
        Folder of the model.
    concurrency : int
        Most requests in one batch.
    max_tokens : int
        Tokens generated per request.
    setting : dict
        One of `PEER_SETTINGS`.
    """

    def __init__(self, model: str, concurrency: int, max_tokens: int, setting: dict[str, Any]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation=setting["attention"]
        ).eval()
        self.generation = GenerationConfig(do_sample=False, max_new_tokens=max_tokens, eos_token_id=-1, pad_token_id=0)
        self.batching = ContinuousBatchingConfig(
            page_size=setting["page_size"],
            max_batch_tokens=setting["max_batch_tokens"],
            num_blocks=concurrency * KV_TOKENS_PER_REQUEST // setting["page_size"],
            max_requests_per_batch=concurrency,
        )

    def __call__(self, prompts: list[list[int]]) -> int:
        """Generate for `prompts`; returns the number of tokens."""
        outputs = self.model.generate_batch(
            prompts,
            generation_config=self.generation,
            continuous_batching_config=self.batching,
            persistent_manager=True,
        )
        return sum(len(output.generated_tokens) for output in outputs.values())

    def close(self) -> None:
        """End the manager's thread and free its cache."""
        self.model.destroy_cached_continuous_batching_manager()


def best_peer_setting(make_peer: Callable[[dict[str, Any]], Peer], prompts: Callable[[str], list[list[int]]]) -> dict:
    """The setting of `PEER_SETTINGS` that answers one warm batch fastest."""
    times = []
    for setting in PEER_SETTINGS:
        peer = make_peer(setting)
        peer(prompts("warm-up"))
        elapsed, _ = seconds(lambda peer=peer: peer(prompts("search")))
        peer.close()
        times.append(elapsed)
        print(f"{setting}: {elapsed:.1f} s", flush=True)
    return PEER_SETTINGS[times.index(min(times))]


def main() -> None:
    """Measure, print and keep the ratio of the two throughputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the model (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="torch threads of both arms")
    args = parser.parse_args()
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)  # warns on every batch that it is kept
    model = args.model or str(default_model_path())
    tokenizer = AutoTokenizer.from_pretrained(model)

    def prompts(tag: str) -> list[list[int]]:
        return chat_prompts(tokenizer, args.requests, tag)

    def make_peer(setting: dict[str, Any]) -> Peer:
        return Peer(model, args.concurrency, args.max_tokens, setting)

    def throughput(generate: Callable[[list[list[int]]], int]) -> Callable[[str], float]:
        def measure(tag: str) -> float:
            elapsed, tokens = seconds(lambda: generate(prompts(tag)))
            if tokens != args.requests * args.max_tokens:
                raise SystemExit(f"an arm made {tokens} tokens, not {args.requests * args.max_tokens}: no comparison")
            return tokens / elapsed

        return measure

    with open_threads(args.threads):
        setting = best_peer_setting(make_peer, prompts)
        ours, peer = our_arm(model, args.concurrency, args.max_tokens), make_peer(setting)
        arms = {"adaverify": throughput(ours), "transformers": throughput(peer)}
        for measure in arms.values():
            measure("warm-up")
        rates = in_pairs(arms, args.rounds)
        peer.close()
        ratio = Spread.of([a / b for a, b in zip(rates["adaverify"], rates["transformers"], strict=True)])
        figures = {name: vars(Spread.of(values)) for name, values in rates.items()}
        for name, values in rates.items():
            print(f"{name}: {Spread.of(values)} tokens/s")
        print(f"ratio: {ratio}")
        keep(
            "throughput_vs_transformers",
            {"tokens_per_second": figures, "ratio": vars(ratio), "peer_setting": setting, "arguments": vars(args)},
        )


if __name__ == "__main__":
    main()
