"""What the fitted law and the offsets of requests together miss on average."""

from __future__ import annotations

import torch
from torch import Tensor

# A single step moves the log-odds by no more than this, and all together no further than that.
MAX_STEP, MAX_SHIFT = 0.05, 0.2
# The first labels count as little as if so many came before them, each with p (1 - p) = 1/4.
FIRST_LABELS = 200.0


class GroupShifts:
    """Log-odds added to all predictions of a group, so that as many drafts are accepted as were predicted.

    The law of a group is right on average without offsets, but not with them. Requests that accept little have more
    rounds, so more labels, so offsets that are shrunk less than those of others: weighted by labels the offsets are
    below 0 on average. The shift follows the residuals of what was really predicted, a Newton step at a time.

    Parameters
    ----------
    num_groups : int
        G.
    horizon : float
        Labels of a group after which a label's weight has fallen to 1/e.
    device : torch.device or str

    Attributes
    ----------
    shift : Tensor, shape [G], float64
        Log-odds.
    information : Tensor, shape [G], float64
        Sum of p (1 - p) over the labels remembered.
    """

    def __init__(self, num_groups: int, horizon: float, device: torch.device | str) -> None:
        self.horizon = horizon
        self.shift = torch.zeros(num_groups, dtype=torch.float64, device=device)
        self.information = torch.full_like(self.shift, FIRST_LABELS / 4)

    def observe(self, group: Tensor, labels: Tensor, information: Tensor, residual: Tensor) -> None:
        """Take in the outcome of one verification.

        Parameters
        ----------
        group : Tensor, shape [R], int64
        labels, information, residual : Tensor, shape [R]
            Of each request: number of labels, and the sums of p (1 - p) and of outcome - p over them.
        """
        count, told, missed = (
            torch.zeros_like(self.shift).index_add_(0, group, values.double())
            for values in (labels, information, residual)
        )
        self.information.mul_(torch.exp(-count / self.horizon)).add_(told)
        step = missed / self.information.clamp(min=FIRST_LABELS / 4)
        self.shift.add_(step.clamp(-MAX_STEP, MAX_STEP)).clamp_(-MAX_SHIFT, MAX_SHIFT)
