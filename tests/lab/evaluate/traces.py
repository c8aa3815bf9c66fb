"""Traces in memory, run by run, from known laws of acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.lab.synthetic import columns, run_info

from adaverify.lab.trace import Drafts, RunInfo, Steps, Trace


def memory_trace(*runs: tuple[RunInfo, dict[str, Any]]) -> Trace:
    """A trace of some runs; the law of each goes to :func:`tests.lab.synthetic.columns`."""
    names: dict[str, int] = {}
    drafts, steps = [], []
    K = max(info.num_speculative_tokens for info, _ in runs)
    for number, (info, law) in enumerate(runs):
        own, step = columns(K=info.num_speculative_tokens, **law)
        own["dataset"] = np.array([names.setdefault(name, len(names)) for name in own["dataset"]])
        own = {name: np.asarray(values) for name, values in own.items()}
        drafts.append(Drafts(run=np.full(len(own["step"]), number, np.int16), **own))
        intercepts = np.array(step["intercepts"], np.float32)
        step["intercepts"] = np.pad(intercepts, ((0, 0), (0, K - intercepts.shape[1])), constant_values=np.nan)
        steps.append(Steps(run=np.full(len(step["step"]), number, np.int16), **step))
    infos = tuple(info for info, _ in runs)
    return Trace(infos, tuple(names), Drafts.concatenate(drafts), Steps.concatenate(steps))


def one_run(**law: Any) -> Trace:
    """A trace of one run."""
    return memory_trace((run_info(), law))


def workloads(drafter: str, slope: float, levels: dict[str, float], seed: int, **law: Any) -> list[Any]:
    """Runs of one drafter, one a dataset, with all intercepts moved by the dataset's level."""
    return [
        (
            run_info(run=f"{drafter}-{dataset}", drafter=drafter),
            {
                "slope": slope,
                "datasets": (dataset,),
                "intercepts": tuple(level + np.array([0.3, 0.1, -0.1, -0.3])),
                "seed": seed + i,
                **law,
            },
        )
        for i, (dataset, level) in enumerate(levels.items())
    ]


def with_drafts(trace: Trace, **changes: Any) -> Trace:
    """The same trace with other columns of drafts."""
    return replace(trace, drafts=replace(trace.drafts, **changes))


def half_greedy(trace: Trace) -> Trace:
    """The same trace with every other request greedy: of those, every other accepted draft is rejected instead."""
    greedy = trace.drafts.request % 2 == 0
    rejected = np.flatnonzero(greedy & (trace.drafts.label == 1))[::2]
    return with_drafts(with_labels(trace, rejected, 0), temperature=np.where(greedy, 0, 1).astype(np.float32))


def with_labels(trace: Trace, rows: Sequence[int] | np.ndarray, label: Any) -> Trace:
    """The same trace with other labels in some rows."""
    labels = trace.drafts.label.copy()
    labels[rows] = label
    return with_drafts(trace, label=labels)
