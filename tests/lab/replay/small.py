"""Traces written out by hand, and synthetic ones in memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from adaverify.lab.replay import Rounds
from adaverify.lab.trace import Drafts, RunInfo, Steps, Trace
from lab import synthetic

FLOATS = ("temperature", "top_p", "logit_q_max", "q_max", "q_sampled", "entropy", "margin", "q_sampled_before")


@dataclass(frozen=True)
class Block:
    """One request's drafts of one step; ``outcome`` has + for accepted, - for rejected and . for neither."""

    outcome: str
    request: int = 0
    step: int = 0
    run: int = 0
    dataset: int = 0
    telling: bool = True
    temperature: float = 1.0
    admitted: int | None = None
    q_max: tuple[float, ...] | None = None
    q_sampled: tuple[float, ...] | None = None
    head: tuple[float, ...] | None = None
    overlap: tuple[float, ...] | None = None

    def rows(self) -> list[dict[str, Any]]:
        depth = len(self.outcome)
        q_max = self.q_max or (0.5,) * depth
        values = [self.q_sampled or q_max, self.head or (np.nan,) * depth, self.overlap or (np.nan,) * depth]
        admitted = depth if self.admitted is None else self.admitted
        return [
            {
                **dict.fromkeys(FLOATS, 1.0),
                "run": self.run,
                "step": self.step,
                "request": self.request,
                "position": i + 1,
                "dataset": self.dataset,
                "telling": self.telling,
                "temperature": self.temperature,
                "context": 10,
                "logit_q_max": np.log(q_max[i]) - np.log1p(-q_max[i]),
                "q_max": q_max[i],
                "q_sampled": values[0][i],
                "head_logit": np.log(values[1][i]) - np.log1p(-values[1][i]),
                "overlap": values[2][i],
                "prediction": 0.5,
                "admitted": i < admitted,
                "label": {"+": 1, "-": 0, ".": -1}[self.outcome[i]],
            }
            for i in range(depth)
        ]


KINDS = {"run": np.int16, "step": np.int64, "request": np.int64, "position": np.int8, "dataset": np.int32}
KINDS |= {"telling": bool, "admitted": bool, "label": np.int8, "context": np.int32}


def trace_of(*blocks: Block, runs: tuple[RunInfo, ...] = (), **info: Any) -> Trace:
    """A trace of these blocks, with K of the deepest unless ``runs`` say otherwise."""
    K = max(len(block.outcome) for block in blocks)
    runs = runs or (synthetic.run_info(**{"num_speculative_tokens": K, "max_num_seqs": 2} | info),)
    rows = [row for block in blocks for row in block.rows()]
    columns = {f.name: np.array([row[f.name] for row in rows], KINDS.get(f.name, np.float32)) for f in fields(Drafts)}
    steps = Steps(**{f.name: np.zeros(0, np.int16 if f.name == "run" else float) for f in fields(Steps)})
    return Trace(runs, ("maths", "chat"), Drafts(**columns), steps)


def rounds_of(*blocks: Block, **info: Any) -> Rounds:
    return Rounds.of(trace_of(*blocks, **info))


def synthetic_rounds(info: dict[str, Any] | None = None, **law: Any) -> Rounds:
    """Rounds from :func:`synthetic.columns`, without the way over the disk."""
    run = synthetic.run_info(**(info or {}))
    drafts, _ = synthetic.columns(**{"K": run.num_speculative_tokens} | law)
    names = list(dict.fromkeys(drafts["dataset"]))
    drafts = drafts | {"dataset": np.array([names.index(name) for name in drafts["dataset"]])}
    columns = {name: np.asarray(values, KINDS.get(name, np.float32)) for name, values in drafts.items()}
    columns["run"] = np.zeros(len(columns["step"]), np.int16)
    steps = Steps(**{f.name: np.zeros(0, np.int16 if f.name == "run" else float) for f in fields(Steps)})
    return Rounds.of(Trace((run,), tuple(names), Drafts(**columns), steps))
