"""How far one decoded token is from what the memory allows: a step, against reading the weights once and dispatch.

The bar: the forward pass of one token takes at most 1.25 times reading the weights once, at the bandwidth measured
beside it, and dispatching the operations, measured on a twin of the model that is as deep but a few units wide.
``python -m benchmarks.decode_step`` measures the three in turns, and the whole step of the engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from time import perf_counter

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from adaverify import LLM, SamplingParams
from adaverify.engine.batch import Segment
from adaverify.engine.default_model import default_model_path
from adaverify.engine.hook_check import hook_model
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.runner import ModelRunner
from benchmarks.common import Spread, chat_prompts, keep, open_threads

NARROW = 8  # units of a head of the twin


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--context", type=int, default=128, help="tokens before the decoded one")
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of one pass")
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="decode_step")
    args = parser.parse_args()
    target = args.target or str(default_model_path())
    with open_threads(args.threads):
        llm = LLM(target, None, max_num_seqs=1)
        weights = weight_bytes(llm.engine.runner.model)
        measured = measure(llm, weights, args)
    rows = zip(measured["forward"], measured["read"], measured["dispatch"], strict=True)
    ratio = Spread.of([forward / (read + dispatch) for forward, read, dispatch in rows])
    bandwidth = Spread.of([weights / 1e9 / (1e-3 * ms) for ms in measured["read"]])
    for part, values in measured.items():
        print(f"{part:9} {Spread.of(values)} ms")
    print(f"{weights / 2**20:.0f} MiB of weights at {bandwidth} GB/s")
    print(f"the forward pass takes {ratio} of reading and dispatch")
    figures = {part: asdict(Spread.of(values)) for part, values in measured.items()}
    shared = {"dtype": llm.engine.config.dtype, "context": args.context, "weight_bytes": weights}
    keep(args.name, {**shared, "gb_per_second": asdict(bandwidth), "ms": figures, "ratio": asdict(ratio)})


def measure(llm: LLM, weights: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each part by pass; the parts take turns."""
    runner = llm.engine.runner
    parts = {
        "read": reader(weights),
        "dispatch": decoder(narrow_twin(runner), args.context),
        "forward": decoder(runner, args.context),
        "step": None,
    }
    measured: dict[str, list[float]] = {part: [] for part in parts}
    for number in range(1 + args.passes):
        for part, call in parts.items():
            spent = step_ms(llm, args, f"pass {number}") if call is None else median_ms(call, args.steps)
            if number > 0:  # the first pass warms up
                measured[part].append(spent)
    return measured


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of all weights that a decoded token reads; a tied embedding counts once, as the head."""
    dtype = next(model.parameters()).dtype
    config = model.config.get_text_config()
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    return (model.num_parameters() - embedding) * dtype.itemsize


def reader(size: int) -> Callable[[], object]:
    """A call that reads as many bytes once, in all threads."""
    return torch.ones(size // 4).sum


def narrow_twin(runner: ModelRunner) -> ModelRunner:
    """The same layers and operations, on weights so small that only dispatch is left."""
    config = AutoConfig.for_model(**runner.model.config.to_dict())
    heads = config.num_attention_heads
    config.update({"hidden_size": heads * NARROW, "head_dim": NARROW, "intermediate_size": heads * NARROW})
    config.update({"vocab_size": 128, "pad_token_id": None})
    model = AutoModelForCausalLM.from_config(config, dtype=runner.model.dtype).eval().requires_grad_(False)
    shapes = hook_model(model)
    kv = PagedKV(shapes, runner.kv.num_blocks, runner.kv.block_size, model.dtype, runner.device)
    return ModelRunner(model.to(runner.device), kv, runner.max_padded_query)


def decoder(runner: ModelRunner, context: int) -> Callable[[], object]:
    """A call that decodes one token behind `context` others."""
    blocks = list(range(1, 2 + context // runner.kv.block_size))
    return lambda: runner.forward([Segment([0], context, blocks, 1)])


def median_ms(call: Callable[[], object], times: int) -> float:
    """Median of `times` calls."""
    spent = []
    for _ in range(times):
        start = perf_counter()
        call()
        spent.append(1e3 * (perf_counter() - start))
    return Spread.of(spent).median


def step_ms(llm: LLM, args: argparse.Namespace, tag: str) -> float:
    """Milliseconds of a step of the engine, all in it, while one request decodes at T=1, top-p .95."""
    params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=1, ignore_eos=True, seed=0)
    prompt = chat_prompts(llm.tokenizer, 1, tag)
    begin, _ = timed(llm, prompt, params)
    end, tokens = timed(llm, prompt, replace(params, max_tokens=1 + args.steps))
    return (end - begin) / (tokens - 1)


def timed(llm: LLM, prompt: list[list[int]], params: SamplingParams) -> tuple[float, int]:
    """Milliseconds and tokens of an answer."""
    start = perf_counter()
    outputs = llm.generate(prompt, params)
    return 1e3 * (perf_counter() - start), len(outputs[0].outputs[0].token_ids)


if __name__ == "__main__":
    main()
