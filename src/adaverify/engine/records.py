"""What an observer is told of every step that drafted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from adaverify.engine.scheduler import StepPlan
from adaverify.engine.speculation import Round
from adaverify.policy.acceptance import AcceptanceEstimator


@dataclass(frozen=True)
class StepRecord:
    """One step, after verification and before anything is learned from it or handed out.

    Attributes
    ----------
    number : int
        Steps before this one.
    plan : StepPlan
        Its requests hold the tokens from before the step.
    current : Round
    accepted : list of int
        Drafts accepted, one number per decode of the plan.
    within : list of int
        Verified drafts up to the one that ends the decode's text.
    telling : list of bool
        Decodes whose labels say something about other requests.
    overlaps : Tensor [R, K] float32, optional
        1 - TV(p, q) of each verified draft, nan elsewhere, if the observer wants it.
    estimator : AcceptanceEstimator
        As it was when the drafts were scored; to be read at once.
    seconds : dict of str to float
        Time spent in this step so far, by part, as in :class:`~adaverify.engine.stats.EngineStats`.
    """

    number: int
    plan: StepPlan
    current: Round
    accepted: list[int]
    within: list[int]
    telling: list[bool]
    overlaps: Tensor | None
    estimator: AcceptanceEstimator
    seconds: dict[str, float]


class StepObserver(Protocol):
    """Sees every step that drafted; the engine waits for it."""

    wants_overlaps: bool

    def record(self, step: StepRecord) -> None:
        """Take note of a step."""
        ...
