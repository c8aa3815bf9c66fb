"""One step as the cost model sees it: how large it was, and how long it took."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StepSize:
    """What the time of a step depends on. All of it is lengths: nothing here tells what was drawn in the step.

    Attributes
    ----------
    packed_tokens : int
        Tokens of the target's pass: one per decoding request, its drafts, prompt chunks.
    requests : int
        Decoding requests.
    context_tokens : int
        Tokens that the decoding requests hold, whose keys each of them reads.
    prefill_tokens : int
        Packed tokens that belong to prompt chunks.
    prefill_pairs : int
        Query-key pairs of the prompt chunks: each of their tokens attends to all up to itself.
    depth : int
        Drafts proposed per request; 0 if nothing was drafted.
    backlog_tokens : int
        Tokens beyond the last round's that the drafter has not read, since steps drafted nothing: drafting at any depth
        has to read them first.
    """

    packed_tokens: int
    requests: int
    context_tokens: int
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    depth: int = 0
    backlog_tokens: int = 0

    @property
    def mean_context(self) -> float:
        """Tokens a decoding request holds on average; 0 without any."""
        return self.context_tokens / self.requests if self.requests else 0.0

    @property
    def pairs(self) -> float:
        """Query-key pairs of the pass; every verified draft counts as one of a request of mean length."""
        return (self.packed_tokens - self.prefill_tokens) * self.mean_context + self.prefill_pairs


@dataclass(frozen=True)
class StepTime:
    """How long a step took, in milliseconds; together its parts are the whole of it, up to the next step's start.

    Attributes
    ----------
    draft_ms : float
        From the start until the drafts are made and those to be verified are chosen, and learning from them at the end.
    verify_ms : float
        The target's pass, sampling and verification.
    other_ms : float
        All else: packing, what the drafter takes from the target's pass, handing out, the caller.
    """

    draft_ms: float
    verify_ms: float
    other_ms: float

    @property
    def total_ms(self) -> float:
        """The whole step."""
        return self.draft_ms + self.verify_ms + self.other_ms

    @property
    def is_sound(self) -> bool:
        """Whether every part could have been measured: finite, not negative, and some time in all."""
        parts = (self.draft_ms, self.verify_ms, self.other_ms)
        return all(math.isfinite(part) and part >= 0 for part in parts) and self.total_ms > 0


@dataclass(frozen=True)
class StepReport:
    """What a step took, and what it had been expected to take, in milliseconds.

    Attributes
    ----------
    size : StepSize
    time : StepTime
    live_ms, startup_ms : float
        Predicted by the costs learned from the steps before, and by the start-up table.
    """

    size: StepSize
    time: StepTime
    live_ms: float
    startup_ms: float


class RecentErrors:
    """Relative errors of the latest predictions.

    Parameters
    ----------
    window : int
        How many are kept.
    """

    def __init__(self, window: int = 500) -> None:
        self._errors = np.zeros(window)
        self._count = 0

    def add(self, predicted: float, measured: float) -> None:
        """One more prediction of a positive measurement."""
        self._errors[self._count % len(self._errors)] = abs(predicted / measured - 1)
        self._count += 1

    @property
    def median_percent(self) -> float | None:
        """Median absolute error, in % of what was measured; the upper one of two, None before the first."""
        count = min(self._count, len(self._errors))
        return 100 * float(np.partition(self._errors[:count], count // 2)[count // 2]) if count else None
