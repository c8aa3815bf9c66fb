"""One shared slope and an intercept for each position, fitted to counts, with a prior for what counts do not say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A Newton step moves no draft's log-odds by more than this, so that an overshoot cannot saturate the predictions.
LARGEST_STEP = 1.0
SLOPE_BOUNDS = (0.02, 3.0)
INTERCEPT_BOUND = 8.0


@dataclass(frozen=True)
class Prior:
    """What is believed before any label, in numbers of labels.

    Attributes
    ----------
    slope, intercept : Tensor, broadcastable to [G, H]
    slope_precision, intercept_precision : float
        Inverse variances of the slope and of the intercepts' common level.
    position_precision : float
        Inverse variance of a position's intercept around that level.
    """

    slope: Tensor
    intercept: Tensor
    slope_precision: float = 16.0
    intercept_precision: float = 1.0
    position_precision: float = 4.0


def newton_step(
    slope: Tensor, intercepts: Tensor, counts: Tensor, accepted: Tensor, features: Tensor, prior: Prior
) -> tuple[Tensor, Tensor]:
    """Move slope and intercepts towards the mode of their posterior.

    ``logit p = slope * f + intercept_k``; the intercepts scatter around a common level, so that a position
    that has no labels of its own follows the others.

    Parameters
    ----------
    slope : Tensor, shape [...], float64
    intercepts : Tensor, shape [..., K], float64
    counts, accepted, features : Tensor, shape [..., K, B], float64
        Labels, accepted drafts and mean feature of every bin.
    prior : Prior

    Returns
    -------
    slope, intercepts : Tensor
        Moved along Newton's direction, within bounds, no draft's log-odds by more than ``LARGEST_STEP``.
    """
    p = torch.sigmoid(slope[..., None, None] * features + intercepts[..., None])
    variance, residual = counts * p * (1 - p), accepted - counts * p
    weighted = variance * features
    c, b, a = variance.sum(dim=-1), weighted.sum(dim=-1), (weighted * features).sum(dim=(-1, -2))
    g1, g0 = residual.sum(dim=-1), (residual * features).sum(dim=(-1, -2))
    level = common_level(intercepts, c, prior)
    diagonal = c + prior.position_precision
    g1 = g1 + prior.position_precision * (level[..., None] - intercepts)
    g0 = g0 + prior.slope_precision * (prior.slope - slope)
    slope_step = (g0 - (b * g1 / diagonal).sum(dim=-1)) / (prior.slope_precision + a - (b * b / diagonal).sum(dim=-1))
    steps = (g1 - b * slope_step[..., None]) / diagonal
    typical = (features.abs() * counts).sum(dim=(-1, -2)) / counts.sum(dim=(-1, -2)).clamp(min=1.0)
    largest = (slope_step.abs() * typical)[..., None].maximum(steps.abs()).amax(dim=-1)
    share = (LARGEST_STEP / largest.clamp(min=1e-12)).clamp(max=1.0)
    moved = slope + share * slope_step, intercepts + share[..., None] * steps
    return moved[0].clamp(*SLOPE_BOUNDS), moved[1].clamp(-INTERCEPT_BOUND, INTERCEPT_BOUND)


def common_level(intercepts: Tensor, curvature: Tensor, prior: Prior) -> Tensor:
    """Where the intercepts lie together, shape [...]: their mean, each weighed by what it says, drawn to the prior."""
    weight = curvature * prior.position_precision / (curvature + prior.position_precision)
    total = prior.intercept_precision + weight.sum(dim=-1)
    return (prior.intercept_precision * prior.intercept + (weight * intercepts).sum(dim=-1)) / total
