"""Sequential temperature scaling of a confidence head.

Source: DSpark (arXiv 2607.05147); temperature scaling is of Guo et al. (2017, arXiv 1706.04599).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_GRID = torch.linspace(-2.5, 2.5, 201).exp()


def fit_temperatures(log_odds: Tensor, acceptance: Tensor) -> list[float]:
    """One temperature per position, fitted from the first on.

    Each is the one with which the survival up to its position, the temperatures before it being fixed, predicts best
    (cross-entropy) the true chance to get that far: survival is what the budget goes by.

    Parameters
    ----------
    log_odds : Tensor [N, K]
        What the head said of N blocks.
    acceptance : Tensor [N, K]
        The chance that each draft is accepted given the ones before, 1 - TV(p, q).
    """
    log_odds, acceptance = log_odds.double(), acceptance.double()
    reached = acceptance.cumprod(dim=-1).clamp(0.0, 1.0)
    survival = torch.ones(len(log_odds), dtype=torch.float64)
    temperatures = []
    for k in range(log_odds.shape[1]):
        candidates = survival * (log_odds[:, k] / _GRID.double()[:, None]).sigmoid()
        losses = F.binary_cross_entropy(candidates, reached[:, k].expand_as(candidates), reduction="none").mean(-1)
        best = int(losses.argmin())
        temperatures.append(float(_GRID[best]))
        survival = candidates[best]
    return temperatures
