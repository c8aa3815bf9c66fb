"""Turns the engine's steps into rows of a trace."""

from __future__ import annotations

import datetime
import logging
import secrets
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import Tensor

from adaverify.engine.engine import Engine
from adaverify.engine.records import StepRecord
from adaverify.engine.request import Request
from adaverify.errors import ConfigError, TraceError
from adaverify.lab.trace.info import RunInfo
from adaverify.lab.trace.schema import ACCEPTED, REJECTED, UNOBSERVED
from adaverify.lab.trace.writer import TraceWriter

logger = logging.getLogger(__name__)


class Recorder:
    """Records every draft that an engine makes from now on.

    Parameters
    ----------
    engine : Engine
        With a drafter.
    folder : Path
    wants_overlaps : bool
        Also record 1 - TV(p, q) of every verified draft, which costs a pass over both distributions.
    **writing
        Passed to :class:`~adaverify.lab.trace.writer.TraceWriter`.

    Attributes
    ----------
    num_drafts, num_labelled : int
        Drafts recorded so far, and how many of them were accepted or rejected.

    Raises
    ------
    ConfigError
        The engine has no drafter: there is nothing to record.
    TraceError
        The folder cannot be written to.
    """

    def __init__(self, engine: Engine, folder: Path, wants_overlaps: bool = False, **writing: Any) -> None:
        if engine.speculation is None:
            raise ConfigError("recording needs a drafter: give --speculative-config, or leave out --no-speculation")
        self.wants_overlaps = wants_overlaps
        self._engine = engine
        self._numbers: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._next_number = count()
        self._started: float | None = None
        self.num_drafts = 0
        self.num_labelled = 0
        self._writer = TraceWriter(folder, run_info(engine), **writing)
        engine.speculation.drafter.keeps_details = True
        engine.observer = self

    def record(self, step: StepRecord) -> None:
        """See :class:`~adaverify.engine.records.StepObserver`; if writing fails, recording ends and serving goes on."""
        try:
            self._record(step)
        except TraceError as error:
            logger.error("%s; recording ends here", error)
            self._engine.observer = None

    def _record(self, step: StepRecord) -> None:
        now = time.perf_counter()
        self._started = now if self._started is None else self._started
        drafts = self._drafts(step)
        self.num_drafts += len(drafts["label"])
        self.num_labelled += int((drafts["label"] != UNOBSERVED).sum())
        # the step first: its drafts may complete a row group, and both belong in the same one
        self._writer.add("steps", self._step(step, now - self._started))
        self._writer.add("drafts", drafts)

    def close(self) -> None:
        """Write what is left, and leave the engine alone.

        Raises
        ------
        TraceError
            Something could not be written.
        """
        self._engine.observer = None
        if self._engine.speculation is not None:
            self._engine.speculation.drafter.keeps_details = False
        self._writer.close()

    def _drafts(self, step: StepRecord) -> dict[str, Any]:
        """One row for each draft that a decode of the step could use."""
        requests, current = step.plan.decodes, step.current
        K = current.features.shape[1]
        drafted = np.minimum(step.plan.num_drafts, current.block.depth)
        row, i = np.nonzero(np.arange(K) < drafted[:, None])
        admitted, accepted = current.admitted.cpu().numpy()[row], np.array(step.accepted)[row]
        features = current.features.cpu().numpy()[row, i]
        details = current.block.details
        q_sampled, entropy, margin = (self._at(t, row, i) for t in (details or (None,) * 3))
        before = np.where(i > 0, np.roll(q_sampled, 1), np.nan)
        verified = i < admitted
        label = np.where(i < accepted, ACCEPTED, np.where(verified & (i == accepted), REJECTED, UNOBSERVED))
        label = np.where(i < np.array(step.within)[row], label, UNOBSERVED)
        params = [request.params for request in requests]
        return {
            "step": np.full(len(row), step.number),
            "request": np.array([self._number(request) for request in requests])[row],
            "position": i + 1,
            "dataset": np.array([request.dataset for request in requests], dtype=object)[row],
            "temperature": np.array([p.temperature for p in params], np.float32)[row],
            "top_p": np.array([p.top_p for p in params], np.float32)[row],
            "telling": np.array(step.telling, bool)[row],
            "context": np.array([request.num_tokens for request in requests])[row],
            "logit_q_max": features,
            "q_max": 1.0 / (1.0 + np.exp(-features)),
            "q_sampled": q_sampled,
            "entropy": entropy,
            "margin": margin,
            "q_sampled_before": before,
            "head_logit": self._at(current.block.confidence, row, i),
            "prediction": self._at(current.confidences, row, i),
            "admitted": verified,
            "label": label,
            "overlap": self._at(step.overlaps, row, i),
        }

    def _step(self, step: StepRecord, seconds: float) -> dict[str, Any]:
        plan, estimator = step.plan, step.estimator
        num_admitted = int(step.current.admitted.sum())
        spent = step.seconds
        return {
            "step": [step.number],
            "seconds": [seconds],
            "num_requests": [len(plan.decodes)],
            "num_sampling": [plan.num_sampling],
            "num_non_draft_tokens": [plan.num_non_draft_tokens],
            "num_packed_tokens": [plan.num_non_draft_tokens + num_admitted],
            "context_tokens": [sum(request.num_tokens for request in plan.decodes)],
            "max_draft_budget": [plan.max_draft_budget],
            "draft_budget": [int(step.current.budget)],
            "num_admitted": [num_admitted],
            "num_accepted": [sum(step.accepted)],
            "draft_ms": [1e3 * spent["draft"]],
            "verify_ms": [1e3 * (spent["target"] + spent["sample"])],
            "step_ms": [1e3 * (sum(spent.values()) - spent["record"])],
            "num_refits": [estimator.num_refits],
            "slope": [float(estimator.slope)],
            "intercepts": [estimator.intercepts.tolist()],
        }

    def _number(self, request: Request) -> int:
        """A completion's number in the trace, in the order in which completions first draft."""
        if request not in self._numbers:
            self._numbers[request] = next(self._next_number)
        return self._numbers[request]

    @staticmethod
    def _at(values: Tensor | None, row: np.ndarray, i: np.ndarray) -> np.ndarray:
        """The values of the recorded drafts; nan where there are none, or beyond a shallow block."""
        if values is None:
            return np.full(len(row), np.nan, np.float32)
        return values.cpu().numpy()[row, i]


def run_info(engine: Engine) -> RunInfo:
    """What the engine's traces say of the run."""
    speculation, config = engine.speculation, engine.config.speculative_config
    assert speculation is not None
    assert config is not None
    started = datetime.datetime.now(datetime.timezone.utc)
    trims = speculation.adaptive and speculation.cost_table is not None
    return RunInfo(
        run=f"{started:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        target=Path(engine.config.model).name,
        drafter=Path(config.model).name,
        method=config.method,
        num_speculative_tokens=config.num_speculative_tokens,
        max_num_seqs=engine.config.max_num_seqs,
        knows_q_before_draw=speculation.drafter.knows_q_before_draw,
        drafts_in_parallel=speculation.drafter.drafts_in_parallel,
        draft_sample_method=config.draft_sample_method,
        rejection_sample_method=config.rejection_sample_method,
        trimmed=trims,
        confidence="head" if speculation.reads_head else "estimator",
        costs=None if speculation.cost_table is None else speculation.cost_table.to_dict(),
        started=started.isoformat(timespec="seconds"),
        versions={name: _version(name) for name in ("adaverify", "torch", "transformers")},
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
