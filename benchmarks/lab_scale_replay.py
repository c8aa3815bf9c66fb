"""Replay at scale: seconds and memory for millions of drafts, every default policy, from the files on.

    python benchmarks/lab_scale_replay.py --drafts 5000000 --concurrency 64

Prints JSON. The trace is synthetic and thrown away; the replay runs in a process of its own, so that its memory is not
that of whatever made the trace.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from adaverify.lab.trace import RunInfo, TraceWriter
from adaverify.policy.cost import CostCurve, CostTable
from benchmarks.common import keep

K = 7
STEPS_PER_REQUEST = 100
REQUESTS = 64
COSTS = CostTable(
    verify=CostCurve((1, 16, 64, 128, 256, 512), (58.0, 65.0, 91.0, 129.0, 163.0, 276.0)),
    draft=CostCurve((1, 16, 64), (7.0, 14.0, 35.0)),
)
INFO = RunInfo(
    run="scale",
    target="synthetic",
    drafter="synthetic-draft",
    method="eagle3",
    num_speculative_tokens=K,
    max_num_seqs=REQUESTS,
    knows_q_before_draw=False,
    drafts_in_parallel=False,
    trimmed=False,
    costs=COSTS.to_dict(),
)


def write_trace(folder: Path, num_drafts: int) -> int:
    """A trace of 64 requests at a time, each of 100 steps, in which acceptance follows a logistic law."""
    writer, rng = TraceWriter(folder, INFO), np.random.default_rng(0)
    size = STEPS_PER_REQUEST * REQUESTS * K
    generations = -(-num_drafts // size)
    for generation in range(generations):
        writer.add("drafts", _drafts(rng, generation))
    writer.close()
    return generations * size


def _drafts(rng: np.random.Generator, generation: int) -> dict[str, Any]:
    """All drafts of 64 requests that start and end together."""
    shape = (STEPS_PER_REQUEST, REQUESTS, K)
    f = rng.normal(1.5, 2.0, shape)
    chance = 1 / (1 + np.exp(-(0.5 * f - 0.1 * np.arange(K))))
    survives = (rng.random(shape) < chance).cumprod(axis=-1)
    reached = np.concatenate([np.ones((*shape[:2], 1)), survives[..., :-1]], axis=-1) > 0
    q_max = 1 / (1 + np.exp(-f))
    q_sampled = np.where(rng.random(shape) < q_max, q_max, (1 - q_max) * rng.random(shape))
    step, seat, position = (index.ravel() for index in np.indices(shape))
    return {
        "step": generation * STEPS_PER_REQUEST + step,
        "request": generation * REQUESTS + seat,
        "position": position + 1,
        "dataset": pa.DictionaryArray.from_arrays(np.zeros(f.size, np.int32), ["synthetic"]),
        "temperature": np.ones(f.size),
        "top_p": np.full(f.size, 0.95),
        "telling": np.ones(f.size, bool),
        "context": 100 + step,
        "logit_q_max": f.ravel(),
        "q_max": q_max.ravel(),
        "q_sampled": q_sampled.ravel(),
        "entropy": (1 - q_max).ravel(),
        "margin": np.abs(f).ravel(),
        "q_sampled_before": np.full(f.size, np.nan),
        "head_logit": (0.5 * f + rng.normal(0, 0.3, shape)).ravel(),
        "prediction": chance.ravel(),
        "admitted": np.ones(f.size, bool),
        "label": np.where(reached, survives, -1).ravel(),
        "overlap": chance.ravel(),
    }


def measure(folder: Path, concurrency: int) -> dict[str, Any]:
    """Read, gather and replay, timed part by part."""
    import torch

    from adaverify.lab.replay import Rounds, Traffic, recorded_costs, replay
    from adaverify.lab.replay.policies import default_policies
    from adaverify.lab.trace import read_trace

    torch.set_num_threads(1)
    seconds: dict[str, dict[str, float]] = {}

    def timed(part: str, call: Any) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        result = call()
        seconds[part] = {
            "wall": round(time.perf_counter() - wall, 2),
            "processor": round(time.process_time() - processor, 2),
        }
        return result

    rounds = timed("read and gather", lambda: Rounds.of(read_trace([folder])))
    traffic = timed("seat", lambda: Traffic.build(rounds, concurrency))
    costs, _ = recorded_costs(rounds)
    rates = {}
    for policy in default_policies(rounds):
        result = timed(policy, lambda policy=policy: replay(rounds, policy, costs, traffic=traffic))
        rates[policy] = round(result.tokens_per_second, 1)
    return {
        "concurrency": concurrency,
        "rounds": len(rounds),
        "steps": traffic.num_steps,
        "seconds": seconds,
        "total_seconds": {
            kind: round(sum(part[kind] for part in seconds.values()), 1) for kind in ("wall", "processor")
        },
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "tokens_per_second": rates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drafts", type=int, default=5_000_000)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.concurrency[0])))
        return
    with tempfile.TemporaryDirectory() as name:
        drafts = write_trace(Path(name), options.drafts)
        command = [sys.executable, "-m", "benchmarks.lab_scale_replay", "--measure", name, "--concurrency"]
        runs = [
            json.loads(subprocess.run([*command, str(seats)], check=True, capture_output=True, text=True).stdout)
            for seats in options.concurrency
        ]
    print(json.dumps({"drafts": drafts, "runs": runs}, indent=2))
    keep("lab_scale_replay", {"drafts": drafts, "runs": runs})


if __name__ == "__main__":
    main()
