"""What a replay gives: step by step, in windows of time, and in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from adaverify.lab.trace.trace import Floats, Ints


@dataclass(frozen=True)
class StepLog:
    """One entry a step, int64 counts and float64 sums.

    Attributes
    ----------
    num_requests, drafted, budget, admitted, accepted : int64 [T]
        Requests, drafts made and usable, allowed, verified, accepted.
    draft_ms, verify_ms : float64 [T]
        What drafting and the target's pass are charged.
    prompt_tokens : int64 [T]
        Tokens of prompts in that pass.
    prompt_ms : float64 [T]
        What they add to ``verify_ms``.
    labels, predicted, observed, log_loss : float64 [T]
        Number of drafts that were predicted and then labelled, and the sums of their predicted chances, of their
        acceptances, and of their log-losses.
    """

    num_requests: Ints
    drafted: Ints
    budget: Ints
    admitted: Ints
    accepted: Ints
    draft_ms: Floats
    verify_ms: Floats
    prompt_tokens: Ints
    prompt_ms: Floats
    labels: Floats
    predicted: Floats
    observed: Floats
    log_loss: Floats

    def __len__(self) -> int:
        return len(self.num_requests)

    def part(self, start: int, end: int) -> StepLog:
        """The steps from ``start`` to before ``end``."""
        return StepLog(**{field.name: getattr(self, field.name)[start:end] for field in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence[StepLog]) -> StepLog:
        """The steps of all parts, one after the other."""
        return cls(
            **{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)}
        )


class Refit(NamedTuple):
    """Coefficients from some step on."""

    step: int
    num_refits: int
    slope: float
    intercepts: tuple[float, ...]


@dataclass(frozen=True)
class Window:
    """Sums over consecutive steps, and what follows from them.

    Attributes
    ----------
    first_step, num_steps, rounds, tokens, drafted, budget, admitted, accepted, labels : int
    cost_ms : float
    predicted, observed, log_loss : float, optional
        Means over the labelled drafts; None without one.
    prompt_tokens : int
    prompt_ms : float
        The part of ``cost_ms`` that prompts added.
    """

    first_step: int
    num_steps: int
    rounds: int
    tokens: int
    cost_ms: float
    drafted: int
    budget: int
    admitted: int
    accepted: int
    labels: int
    predicted: float | None
    observed: float | None
    log_loss: float | None
    prompt_tokens: int = 0
    prompt_ms: float = 0.0

    @classmethod
    def of(cls, steps: StepLog, first_step: int) -> Window:
        """The sums of ``steps``, the first of which has that number."""
        labels = int(steps.labels.sum())

        def mean(sums: Floats) -> float | None:
            return float(sums.sum()) / labels if labels else None

        return cls(
            first_step=first_step,
            num_steps=len(steps),
            rounds=int(steps.num_requests.sum()),
            tokens=int(steps.num_requests.sum() + steps.accepted.sum()),
            cost_ms=float(steps.draft_ms.sum() + steps.verify_ms.sum()),
            drafted=int(steps.drafted.sum()),
            budget=int(steps.budget.sum()),
            admitted=int(steps.admitted.sum()),
            accepted=int(steps.accepted.sum()),
            labels=labels,
            predicted=mean(steps.predicted),
            observed=mean(steps.observed),
            log_loss=mean(steps.log_loss),
            prompt_tokens=int(steps.prompt_tokens.sum()),
            prompt_ms=float(steps.prompt_ms.sum()),
        )

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted per second of cost."""
        return self.tokens / self.cost_ms * 1e3

    def per_round(self, count: str) -> float:
        """``drafted``, ``budget``, ``admitted``, ``accepted`` or ``tokens`` by rounds."""
        return float(getattr(self, count)) / self.rounds

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "tokens_per_second": self.tokens_per_second}


@dataclass(frozen=True)
class ReplayResult:
    """One policy over one traffic.

    Attributes
    ----------
    policy : str
    lossless : bool
        Whether the text keeps the target's distribution, verified as recorded.
    attainable : bool
        False for a bound that no server reaches.
    concurrency : int
        Seats.
    num_speculative_tokens : int
    steps : StepLog
    refits : tuple of Refit
        Of a policy that learns: its coefficients at the start and after each refit that it used.
    """

    policy: str
    lossless: bool
    attainable: bool
    concurrency: int
    num_speculative_tokens: int
    steps: StepLog
    refits: tuple[Refit, ...] = ()

    @property
    def total(self) -> Window:
        """All steps."""
        return Window.of(self.steps, 0)

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted per second of cost."""
        return self.total.tokens_per_second

    def windows(self, count: int = 20) -> list[Window]:
        """Rate and calibration over time, in at most ``count`` windows of about as many steps each."""
        edges = np.unique(np.linspace(0, len(self.steps), count + 1).astype(int))
        return [Window.of(self.steps.part(start, end), start) for start, end in pairwise(edges.tolist())]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: totals, windows, refits."""
        return {
            "policy": self.policy,
            "lossless": self.lossless,
            "attainable": self.attainable,
            **self.total.to_dict(),
            "windows": [window.to_dict() for window in self.windows()],
            "refits": [refit._asdict() for refit in self.refits],
        }
