"""Outcomes of verification that wait to be learned from: a few rounds cost as much as many."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

# Rounds of single requests that are learned from together at least. Learning is some 150 small operations, whatever
# their number: a millisecond, which one user would wait for after every few tokens.
ENOUGH_ROUNDS = 16


@dataclass(frozen=True)
class Outcomes:
    """Rounds of R requests, all predicted by the same state of the estimator but for offsets.

    Attributes
    ----------
    features : Tensor, shape [R, K, F]
    predictions : Tensor, shape [R, K]
        NaN where they say nothing of other requests.
    labelled, accepted : Tensor, shape [R, K], bool
    information, residual : Tensor, shape [R, K], float64
        ``p (1 - p)`` and outcome - p.
    group : Tensor, shape [R], int64
    offset : Tensor, shape [R], float64
        Of the request, when the drafts were made.
    """

    features: Tensor
    predictions: Tensor
    labelled: Tensor
    accepted: Tensor
    information: Tensor
    residual: Tensor
    group: Tensor
    offset: Tensor

    @property
    def of_labels(self) -> tuple[Tensor, Tensor, Tensor]:
        """Number of labels, information and residual of each round, shape [R] each."""
        information, residual = (
            torch.where(self.labelled, values, 0.0).sum(dim=1) for values in (self.information, self.residual)
        )
        return self.labelled.sum(dim=1), information, residual


class WaitingOutcomes:
    """Gathers outcomes until there are enough of them."""

    def __init__(self) -> None:
        self._waiting: list[Outcomes] = []

    @property
    def are_enough(self) -> bool:
        """Whether they are worth learning from now."""
        return sum(len(outcomes.group) for outcomes in self._waiting) >= ENOUGH_ROUNDS

    def add(self, outcomes: Outcomes) -> None:
        """Let some wait."""
        self._waiting.append(outcomes)

    def take(self) -> Outcomes | None:
        """All that wait, in order, as one; None if there are none."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        names = [field.name for field in fields(Outcomes)]
        return Outcomes(**{name: torch.cat([getattr(outcomes, name) for outcomes in waiting]) for name in names})
