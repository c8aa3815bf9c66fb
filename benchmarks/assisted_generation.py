"""One user's tokens per second with a smaller model as drafter, against transformers' own assisted generation.

Both arms get the same two models, prompts, dtype, threads, temperature and length (end of sequence ignored), and are
measured in turns in one process, which so holds both models twice. The other side's settings are searched first: each
of `PEER_SETTINGS` answers one prompt. ``python -m benchmarks.assisted_generation --target LARGE --drafter SMALL
--prompts FILE.jsonl``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, logging

from adaverify import LLM, SamplingParams
from benchmarks.common import Spread, file_prompts, in_pairs, keep, open_threads, seconds

Prompts = list[list[int]]
# The library's defaults first: up to 20 drafts, fewer where the assistant is unsure.
PEER_SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0},
    {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0},
    {"num_assistant_tokens": 5, "num_assistant_tokens_schedule": "constant"},
]


class Peer:
    """transformers' assisted generation, one prompt at a time; `setting` belongs to the assistant."""

    def __init__(self, args: argparse.Namespace, dtype: torch.dtype) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self.target, self.assistant = (load(name, dtype=dtype).eval() for name in (args.target, args.drafter))
        sampling = {"do_sample": True, "temperature": args.temperature, "top_p": args.top_p, "top_k": 0}
        self.generation = GenerationConfig(
            **(sampling if args.temperature else {"do_sample": False}),
            max_new_tokens=args.max_tokens,
            eos_token_id=-1,
            pad_token_id=0,
        )
        self.target.generation_config = self.generation
        self._defaults = self.assistant.generation_config.to_dict()
        self.setting: dict[str, Any] = {}

    def use(self, setting: dict[str, Any]) -> None:
        """Draft with `setting` from now on."""
        self.setting = setting
        self.assistant.generation_config = GenerationConfig.from_dict(self._defaults | setting)

    def __call__(self, prompts: Prompts) -> int:
        """Answer the prompts one after the other; returns the number of tokens."""
        torch.manual_seed(0)
        tokens = 0
        for prompt in prompts:
            self.use(self.setting)  # the schedule changes it
            ids = torch.tensor([prompt])
            answer = self.target.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=self.assistant)
            tokens += answer.shape[1] - len(prompt)
        return tokens


def our_arm(args: argparse.Namespace, llm: LLM) -> Callable[[Prompts], int]:
    """Our engine, one prompt at a time."""
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, max_tokens=args.max_tokens, ignore_eos=True, seed=0
    )
    return lambda prompts: sum(len(llm.generate([prompt], params)[0].outputs[0].token_ids) for prompt in prompts)


def rate(answer: Callable[[Prompts], int], prompts: Prompts, args: argparse.Namespace) -> Callable[[str], float]:
    """Tokens per second of an arm."""

    def measure(tag: str) -> float:
        elapsed, tokens = seconds(lambda: answer(prompts))
        if tokens != len(prompts) * args.max_tokens:
            raise SystemExit(f"an arm made {tokens} tokens, not {len(prompts) * args.max_tokens}: no comparison")
        return tokens / elapsed

    return measure


def main() -> None:
    """Measure, print and keep the ratio of the two speeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder of the target")
    parser.add_argument("--drafter", required=True, help="folder of the smaller model")
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL file with turns")
    parser.add_argument("--limit", type=int, default=8, help="prompts")
    parser.add_argument("--num-speculative-tokens", type=int, default=7)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="torch threads of both arms")
    parser.add_argument("--name", default="assisted_generation")
    args = parser.parse_args()
    logging.set_verbosity_error()
    with open_threads(args.threads):
        depth = args.num_speculative_tokens
        drafter = {"method": "draft_model", "model": args.drafter, "num_speculative_tokens": depth}
        drafter["enable_adaptive_verification"] = True
        llm = LLM(args.target, drafter, max_num_seqs=1, enable_prefix_caching=False)
        peer = Peer(args, llm.engine.runner.model.dtype)
        prompts = file_prompts(args.prompts, args.limit + 1, llm.tokenizer)
        peer.use(best_setting(peer, prompts[:1], args))
        arms = {"adaverify": rate(our_arm(args, llm), prompts[1:], args), "transformers": rate(peer, prompts[1:], args)}
        rates = in_pairs(arms, 1 + args.rounds)
    rates = {name: values[1:] for name, values in rates.items()}  # the first round warms up
    ratio = Spread.of([a / b for a, b in zip(rates["adaverify"], rates["transformers"], strict=True)])
    for name, values in rates.items():
        print(f"{name}: {Spread.of(values)} tokens/s")
    print(f"ratio: {ratio}")
    figures = {name: vars(Spread.of(values)) for name, values in rates.items()}
    settings = {"dtype": llm.engine.config.dtype, "peer_setting": peer.setting}
    keep(args.name, {"tokens_per_second": figures, "ratio": vars(ratio), **settings})


def best_setting(peer: Peer, prompts: Prompts, args: argparse.Namespace) -> dict[str, Any]:
    """The setting of `PEER_SETTINGS` that answers a prompt fastest, of three tries each."""
    measure = rate(peer, prompts, args)
    found = []
    for setting in PEER_SETTINGS:
        peer.use(setting)
        measure("warm-up")
        found.append(max(measure("search") for _ in range(3)))
        print(f"{setting or 'defaults'}: {found[-1]:.2f} tokens/s", flush=True)
    return PEER_SETTINGS[found.index(max(found))]


if __name__ == "__main__":
    main()
