"""How much easier to draft for each request is than the others: learned from its own labels, and shrunk."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGEST_OFFSET = 6.0
SMALLEST_DEVIATION, LARGEST_DEVIATION = 0.05, 2.5
# Rounds over which it is judged how much requests differ.
JUDGED_ROUNDS = 5000.0
SPEED = 4.0


class RequestOffsets:
    """One number a running request, added to the scores of its drafts.

    It wanders around 0 (an Ornstein-Uhlenbeck process) and each round's labels correct it, as in a Kalman filter:
    a new request starts at 0, one that has shown nothing lately returns there. How far requests differ is learned
    too: where a round goes on surprising in the direction of the last correction, corrections are too small, and
    where it takes them back, too large.

    Parameters
    ----------
    num_slots : int
    deviation : float
        Standard deviation over requests at the start, in units of the score; 0 switches offsets off.
    memory : float
        Rounds after which an offset that nothing supports has fallen to 1/e.
    device : torch.device or str

    Attributes
    ----------
    value, variance : Tensor, shape [num_slots], float64
    prior : Tensor, 0-dim, float64
        Variance over requests.
    """

    def __init__(self, num_slots: int, deviation: float, memory: float, device: torch.device | str) -> None:
        self._kept = math.exp(-1.0 / memory)
        self.is_on = deviation > 0
        self.prior = torch.tensor(deviation**2, dtype=torch.float64, device=device)
        self.value = torch.zeros(num_slots, dtype=torch.float64, device=device)
        self.variance = torch.full_like(self.value, deviation**2)
        self._moved = torch.zeros_like(self.value)
        self._repeated = torch.tensor((0.0, 1.0), dtype=torch.float64, device=device)

    def start(self, slots: Tensor) -> None:
        """Forget the requests that had these slots, shape [N]."""
        self.value[slots] = 0.0
        self.variance[slots] = self.prior
        self._moved[slots] = 0.0

    def of(self, slots: Tensor) -> Tensor:
        """Offsets, shape [R], float64."""
        return self.value[slots]

    def observe(self, slots: Tensor, slope: Tensor, variance: Tensor, residual: Tensor, telling: Tensor) -> None:
        """Correct the offsets by one round.

        Parameters
        ----------
        slots : Tensor, shape [R], int64
            Each at most once.
        slope : Tensor, shape [R]
            By which a unit of the score moves the log-odds.
        variance, residual : Tensor, shape [R]
            Sums over the request's labels of ``p (1 - p)`` and ``label - p``.
        telling : Tensor, shape [R], bool
            Requests that say something of how much others differ, too.
        """
        if not self.is_on:
            return
        information, push = slope * slope * variance, slope * residual
        self._judge(push, information, torch.where(telling, self._moved[slots], 0.0))
        before = self._kept**2 * self.variance[slots] + (1 - self._kept**2) * self.prior
        after = 1 / (1 / before + information)
        rested = self._kept * self.value[slots]
        value = (rested + after * push).clamp(-LARGEST_OFFSET, LARGEST_OFFSET)
        # at its bound an offset has not moved, and more of the same says nothing
        self._moved[slots] = value - rested
        self.value[slots] = value
        self.variance[slots] = after

    def _judge(self, push: Tensor, information: Tensor, moved: Tensor) -> None:
        """Scale the variance over requests until a round's push says nothing more of the last correction."""
        seen = torch.stack(((push * moved).sum(), (information * moved * moved).sum()))
        rate = len(push) / JUDGED_ROUNDS
        self._repeated.mul_(math.exp(-rate)).add_(seen)
        excess = (self._repeated[0] / self._repeated[1]).clamp(-1.0, 1.0)
        self.prior.mul_(torch.exp(SPEED * rate * excess)).clamp_(SMALLEST_DEVIATION**2, LARGEST_DEVIATION**2)
