"""Measures what a step costs, over the sizes that serving uses: the cost tables of adaptive verification."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import Progress

from adaverify.config import MAX_SPECULATIVE_TOKENS
from adaverify.engine.batch import Segment
from adaverify.engine.engine import Engine
from adaverify.engine.request import Request
from adaverify.policy.cost import CostCurve, CostTable
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.sampler import SampleRequest, sample

CONTEXT_TOKENS = 256
MAX_VERIFY_TOKENS = 512
# As much as clients ask for: a nucleus is sought in every row, and costs as much as drawing from it.
TOP_P = 0.95
# Laws of text: the token of rank r has a chance in proportion to r^-1.7, so that a nucleus of .95 holds some 40 tokens,
# as that of a small model in a chat does in the median. What models say of an empty context is far flatter: its nuclei
# hold thousands, and finding them takes six times as long.
ZIPF_EXPONENT = 1.7
PASSES = 10
ENOUGH_PASSES = 2
ENOUGH_SECONDS = 15.0
# Every other pass stops here. Small rounds cost little and differ little, and what a draft costs is a difference.
SMALL_SIZE = 48
# engine, requests or tokens, context, blocks
_MakeRound = Callable[[Engine, int, int, list[int]], Callable[[], None]]
_SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


@torch.inference_mode()
def profile_costs(engine: Engine, show_progress: bool = True) -> CostTable:
    """Time verification by packed tokens and drafting by requests and depth, on the engine's own models and stores.

    A round is priced whole: the packed forward pass over requests that each hold some context, the
    processing of every row's logits, and the sampling. Sizes beyond the largest measured are extended by the
    last slope.

    Parameters
    ----------
    engine : Engine
        Idle; its KV stores are scribbled over where no request holds blocks.
    show_progress : bool
        Draw a progress bar.

    Returns
    -------
    CostTable
        Milliseconds. The draft curves are None without speculation. That of the first draft is measured for every
        drafter: one that drafts a block in one pass still computes and draws the law of each draft.
    """
    assert not engine.has_unfinished, "costs are measured before serving starts"
    verify_sizes = _sizes(min(_largest_round(engine), MAX_VERIFY_TOKENS))
    draft_sizes = _sizes(engine.config.max_num_seqs) if engine.speculation else []
    context = min(CONTEXT_TOKENS, engine.max_model_len // 2)
    # all synthetic requests share one run of blocks: contents do not matter, sizes do
    blocks = engine.pool.allocate(min(engine.pool.blocks_for(context + 32), engine.pool.num_free))
    # room for a block of drafts behind it; in a pool too small for that, drafts fall on the null block
    context = max(1, min(context, len(blocks) * engine.pool.block_size - 1 - MAX_SPECULATIVE_TOKENS))
    if show_progress and not sys.stderr.isatty():
        print("Measuring step costs for adaptive verification; a large model takes a minute or two.", file=sys.stderr)
    first_sizes = draft_sizes if engine.speculation and engine.speculation.num_speculative_tokens > 1 else []
    rounds: list[tuple[list[int], _MakeRound]] = [
        (verify_sizes, _verify_round),
        (draft_sizes, draft_round),
        (first_sizes, functools.partial(draft_round, depth=1)),
    ]
    try:
        with Progress(console=Console(stderr=True), transient=True, disable=not show_progress) as progress:
            task = progress.add_task(
                "Measuring step costs", total=(1 + PASSES) * sum(len(sizes) for sizes, _ in rounds)
            )
            verify, draft, first = (
                _time(
                    {size: make(engine, size, context, blocks) for size in sizes},
                    engine,
                    lambda: progress.advance(task),
                )
                for sizes, make in rounds
            )
    finally:
        engine.pool.release(blocks)
    draft_curve, first_curve = (CostCurve.from_samples(samples) if samples else None for samples in (draft, first))
    return CostTable(CostCurve.from_samples(verify), draft_curve, first_curve)


def _largest_round(engine: Engine) -> int:
    """Tokens of a step in which every seat verifies all its drafts."""
    depth = engine.speculation.num_speculative_tokens if engine.speculation else 0
    return min(engine.config.max_num_batched_tokens, engine.config.max_num_seqs * (1 + depth))


def _sizes(limit: int) -> list[int]:
    return sorted({size for size in _SIZES if size < limit} | {min(limit, _SIZES[-1])})


def _time(calls: dict[int, Callable[[], None]], engine: Engine, advance: Callable[[], None]) -> list[tuple[int, float]]:
    """Milliseconds of each size, in several passes over all of them so that a slow spell hits all alike.

    Only the faster half counts: other work on the machine makes a call slower, never faster. A large model, or a
    slow machine, gets fewer passes. They go up and down the sizes in turns.
    """
    measured: dict[int, list[float]] = {size: [] for size in calls}
    began = time.perf_counter()
    for i in range(1 + PASSES):
        if i > ENOUGH_PASSES and time.perf_counter() - began > ENOUGH_SECONDS:
            break
        for size, call in calls.items() if i % 4 < 2 else reversed(calls.items()):
            advance()
            if i % 2 and size > SMALL_SIZE:
                continue
            start = time.perf_counter()
            call()
            if engine.runner.device.type == "cuda":
                torch.cuda.synchronize(engine.runner.device)
            if i > 0:  # the first pass warms up
                measured[size].append((time.perf_counter() - start) * 1e3)
    return [(size, ms) for size, values in measured.items() for ms in sorted(values)[: (len(values) + 1) // 2]]


def _verify_round(engine: Engine, num_tokens: int, context: int, blocks: list[int]) -> Callable[[], None]:
    """A round of ``num_tokens`` packed tokens: as many requests with all their drafts as fit."""
    speculation = engine.speculation
    width = min(1 + (speculation.num_speculative_tokens if speculation else 0), engine.max_model_len - context)
    lengths = [width] * (num_tokens // width) + ([num_tokens % width] if num_tokens % width else [])
    segments = [Segment([0] * length, context, blocks, length) for length in lengths]
    params = SamplingParams(temperature=1.0, top_p=TOP_P)
    requests = [
        SampleRequest(
            params=params,
            seed=row,
            prompt_token_ids=[0] * context,
            output_token_ids=[0],
            draft_token_ids=[0] * (length - 1),
            q_start=None,
            eos_token_ids=frozenset(),
        )
        for row, length in enumerate(lengths)
    ]

    law = _zipf_logits(engine.runner.vocab_size).to(engine.runner.device)

    def run() -> None:
        output = engine.runner.forward(segments)
        if speculation:
            speculation.drafter.absorb(output, [], [], [])
        sample(output.logits.copy_(law), requests, None, engine.coupled)

    return run


@functools.cache
def _zipf_logits(vocab_size: int) -> torch.Tensor:
    """Logits [V] of a law like those of text, its tokens in any order."""
    ranks = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0)) + 1
    return -ZIPF_EXPONENT * ranks.log()


def draft_round(
    engine: Engine,
    num_requests: int,
    context: int,
    blocks: list[int],
    temperature: float = 1.0,
    depth: int | None = None,
) -> Callable[[], None]:
    """A call that drafts, K deep by default, for requests that each have ``context`` tokens in ``blocks``."""
    assert engine.speculation is not None
    speculation = engine.speculation
    requests = [
        Request(
            request_id="",
            index=0,
            params=SamplingParams(temperature=temperature, top_p=TOP_P),
            token_ids=[0] * (context + 1),
            num_prompt_tokens=context,
            seed=row,
            eos_token_ids=frozenset(),
            max_len=engine.max_model_len,
            blocks=blocks,
        )
        for row in range(num_requests)
    ]

    def run() -> None:
        for request in requests:
            request.num_draft_computed = context
        speculation.drafter.propose(requests, [], depth or speculation.num_speculative_tokens)

    return run
