"""Traces from a known law of acceptance, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adaverify.lab.trace import RunInfo, TraceWriter
from adaverify.policy.cost import CostCurve, CostTable

COSTS = CostTable(
    verify=CostCurve((1, 16, 64, 512), (10.0, 11.0, 16.0, 80.0)), draft=CostCurve((1, 16, 64), (1.0, 2.0, 6.0))
)


def run_info(**changes: Any) -> RunInfo:
    values: dict[str, Any] = {
        "run": "synthetic",
        "target": "tiny",
        "drafter": "tiny-draft",
        "method": "eagle3",
        "num_speculative_tokens": 4,
        "max_num_seqs": 8,
        "knows_q_before_draw": False,
        "drafts_in_parallel": False,
        "trimmed": False,
        "costs": COSTS.to_dict(),
    }
    return RunInfo(**(values | changes))


def columns(
    num_steps: int = 100,
    num_requests: int = 8,
    K: int = 4,
    slope: float = 0.6,
    intercepts: tuple[float, ...] = (0.3, 0.1, -0.1, -0.3),
    steps_per_request: int = 20,
    datasets: tuple[str, ...] = ("maths", "chat"),
    seed: int = 0,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of drafts and steps in which draft i is accepted with probability sigmoid(slope * f + intercept_i).

    Every draft is verified. A request lives ``steps_per_request`` steps; its dataset is its number modulo theirs.
    """
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_requests, K)
    f = rng.normal(1.5, 2.0, shape).astype(np.float32)
    chance = 1 / (1 + np.exp(-(slope * f + np.array(intercepts[:K]))))
    survives = (rng.random(shape) < chance).cumprod(axis=-1).astype(bool)
    reached = np.concatenate([np.ones((*shape[:2], 1), bool), survives[..., :-1]], axis=-1)
    label = np.where(reached, survives, -1)
    step, seat, position = (index.ravel() for index in np.indices(shape))
    request = (step // steps_per_request) * num_requests + seat
    q_max = 1 / (1 + np.exp(-f))
    q_sampled = np.where(rng.random(shape) < q_max, q_max, (1 - q_max) * rng.random(shape)).astype(np.float32)
    before = np.concatenate([np.full((*shape[:2], 1), np.nan), q_sampled[..., :-1]], axis=-1)
    drafts = {
        "step": step,
        "request": request,
        "position": position + 1,
        "dataset": [datasets[int(r) % len(datasets)] for r in request],
        "temperature": np.ones(f.size, np.float32),
        "top_p": np.full(f.size, 0.95, np.float32),
        "telling": np.ones(f.size, bool),
        "context": 50 + 2 * (step % steps_per_request),
        "logit_q_max": f.ravel(),
        "q_max": q_max.ravel().astype(np.float32),
        "q_sampled": q_sampled.ravel(),
        "entropy": (-np.log(q_max) * q_max - np.log1p(-q_max) * (1 - q_max)).ravel().astype(np.float32),
        "margin": np.abs(f).ravel(),
        "q_sampled_before": before.ravel().astype(np.float32),
        "head_logit": np.full(f.size, np.nan, np.float32),
        "prediction": chance.ravel().astype(np.float32),
        "admitted": np.ones(f.size, bool),
        "label": label.ravel(),
        "overlap": chance.ravel().astype(np.float32),
    }
    every = np.arange(num_steps)
    accepted = survives.sum(axis=(1, 2))
    budget = np.full(num_steps, num_requests * K)
    steps = {
        "step": every,
        "seconds": every * 0.02,
        "num_requests": np.full(num_steps, num_requests),
        "num_sampling": np.full(num_steps, num_requests),
        "num_non_draft_tokens": np.full(num_steps, num_requests),
        "num_packed_tokens": num_requests + budget,
        "context_tokens": np.full(num_steps, num_requests * 60),
        "max_draft_budget": budget,
        "draft_budget": budget,
        "num_admitted": budget,
        "num_accepted": accepted,
        "draft_ms": rng.normal(2.0, 0.1, num_steps).astype(np.float32),
        "verify_ms": rng.normal(12.0, 0.5, num_steps).astype(np.float32),
        "step_ms": rng.normal(15.0, 0.5, num_steps).astype(np.float32),
        "num_refits": every // 100,
        "slope": np.full(num_steps, slope, np.float32),
        "intercepts": [list(intercepts[:K])] * num_steps,
    }
    return drafts, steps


def write_trace(folder: Path, info: RunInfo | None = None, rows_per_file: int = 65_536, **law: Any) -> Path:
    """A synthetic trace on disk; ``law`` goes to :func:`columns`."""
    info = info or run_info()
    writer = TraceWriter(folder, info, {"drafts": rows_per_file, "steps": rows_per_file})
    drafts, steps = columns(K=info.num_speculative_tokens, **law)
    per_step = len(drafts["step"]) // len(steps["step"])
    for start in range(0, len(steps["step"]), 10):
        rows = slice(start * per_step, (start + 10) * per_step)
        writer.add("drafts", {name: values[rows] for name, values in drafts.items()})
        writer.add("steps", {name: values[start : start + 10] for name, values in steps.items()})
    writer.close()
    return folder
