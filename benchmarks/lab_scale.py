"""How long the lab takes over a long trace, and how much memory.

``python -m benchmarks.lab_scale evaluate --drafts 5000000`` makes a trace of so many drafts in memory, with everything
that can be recorded, and evaluates it. Peak memory is that of the whole process.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np
from rich.console import Console

from adaverify.lab.trace import Drafts, RunInfo, Steps, Trace
from benchmarks.common import keep, open_threads, seconds

K = 7
REQUESTS_PER_STEP = 64
STEPS_PER_REQUEST = 40
DATASETS = ("maths", "code", "chat", "translation")


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=PARTS)
    parser.add_argument("--drafts", type=int, default=5_000_000)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    args = parser.parse_args()
    trace = long_trace(args.drafts)
    with open_threads(args.threads):
        cpu = process_time()
        wall, figures = seconds(lambda: PARTS[args.what](trace))
        cpu = process_time() - cpu
    measured = {
        "drafts": len(trace.drafts),
        "labelled": len(trace.labelled),
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        **figures,
    }
    Console().print(measured)
    keep(f"lab_scale_{args.what}", measured)


def evaluate(trace: Trace) -> dict[str, Any]:
    """Every table of ``adaverify evaluate``."""
    from adaverify.lab.evaluate import evaluate

    found = evaluate(trace)
    return {"scores": len(found.scores), "claims": {claim.text: claim.verdict for claim in found.claims}}


PARTS: dict[str, Callable[[Trace], dict[str, Any]]] = {"evaluate": evaluate}


def long_trace(num_drafts: int, seed: int = 0) -> Trace:
    """Two runs of different drafters over four datasets, each draft accepted by a logistic law; all are verified."""
    per_run = -(-num_drafts // (2 * K * REQUESTS_PER_STEP))
    rng = np.random.default_rng(seed)
    laws = {"one": (0.5, 0.6), "two": (0.8, 0.2)}
    drafts = [_drafts(rng, number, per_run, *law) for number, law in enumerate(laws.values())]
    steps = [_steps(number, per_run) for number in range(len(laws))]
    runs = [
        RunInfo(
            run=name,
            target="target",
            drafter=name,
            method="dspark",
            num_speculative_tokens=K,
            max_num_seqs=REQUESTS_PER_STEP,
            knows_q_before_draw=False,
            drafts_in_parallel=True,
            trimmed=False,
        )
        for name in laws
    ]
    return Trace(tuple(runs), DATASETS, Drafts.concatenate(drafts), Steps.concatenate(steps))


def _drafts(rng: np.random.Generator, run: int, num_steps: int, slope: float, intercept: float) -> Drafts:
    shape = (num_steps, REQUESTS_PER_STEP, K)
    size = int(np.prod(shape))
    step, seat, depth = (index.ravel() for index in np.indices(shape, dtype=np.int32))
    request = (step // STEPS_PER_REQUEST).astype(np.int64) * REQUESTS_PER_STEP + seat
    dataset = (request % len(DATASETS)).astype(np.int32)
    f = (3.0 + 2.5 * rng.standard_normal(size, np.float32)).clip(-5, 40)
    chance = 1 / (1 + np.exp(-(slope * f + intercept - 0.2 * dataset.astype(np.float32) - 0.05 * depth)))
    chance = chance.astype(np.float32)
    survives = (rng.random(size, np.float32) < chance).reshape(-1, K).cumprod(axis=1, dtype=np.int8)
    reached = np.concatenate([np.ones((len(survives), 1), np.int8), survives[:, :-1]], axis=1)
    q_max = 1 / (1 + np.exp(-f))
    drawn = np.where(rng.random(size, np.float32) < q_max, q_max, (1 - q_max) * rng.random(size, np.float32))
    before = np.roll(drawn, 1)
    before[depth == 0] = np.nan
    return Drafts(
        run=np.full(size, run, np.int16),
        step=step.astype(np.int64),
        request=request,
        position=(depth + 1).astype(np.int8),
        dataset=dataset,
        temperature=(seat % 4 > 0).astype(np.float32),
        top_p=np.full(size, 0.95, np.float32),
        telling=np.ones(size, bool),
        context=(100 + 4 * (step % STEPS_PER_REQUEST)).astype(np.int32),
        logit_q_max=f,
        q_max=q_max,
        q_sampled=drawn,
        entropy=(1 - q_max) * 3 + rng.random(size, np.float32) * 0.1,
        margin=np.abs(f),
        q_sampled_before=before,
        head_logit=slope * f + intercept + 0.3 * rng.standard_normal(size, np.float32),
        prediction=chance,
        admitted=np.ones(size, bool),
        label=np.where(reached == 1, survives, -1).ravel().astype(np.int8),
        overlap=chance,
    )


def _steps(run: int, count: int) -> Steps:
    def full(value: float, kind: type) -> np.ndarray:
        return np.full(count, value, kind)

    number, drafted = np.arange(count), REQUESTS_PER_STEP * K
    return Steps(
        run=full(run, np.int16),
        step=number,
        seconds=number * 0.05,
        num_requests=full(REQUESTS_PER_STEP, np.int32),
        num_sampling=full(REQUESTS_PER_STEP, np.int32),
        num_non_draft_tokens=full(REQUESTS_PER_STEP, np.int32),
        num_packed_tokens=full(REQUESTS_PER_STEP + drafted, np.int32),
        context_tokens=full(REQUESTS_PER_STEP * 180, np.int64),
        max_draft_budget=full(drafted, np.int32),
        draft_budget=full(drafted, np.int32),
        num_admitted=full(drafted, np.int32),
        num_accepted=full(drafted // 2, np.int32),
        draft_ms=full(5.0, np.float32),
        verify_ms=full(40.0, np.float32),
        step_ms=full(48.0, np.float32),
        num_refits=(number // 100).astype(np.int32),
        slope=full(0.5, np.float32),
        intercepts=np.full((count, K), -0.2, np.float32),
    )


if __name__ == "__main__":
    main()
