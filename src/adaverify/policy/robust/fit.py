"""Shared slopes and an intercept for each position, fitted to counts, with a prior for what counts do not say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A Newton step moves no draft's log-odds by more than this, so that an overshoot cannot saturate the predictions.
LARGEST_STEP = 1.0
LARGEST_SLOPE = 3.0
INTERCEPT_BOUND = 8.0


@dataclass(frozen=True)
class Prior:
    """What is believed before any label.

    Attributes
    ----------
    slopes : Tensor, shape [G, 1, F]
    intercept : Tensor, shape [G, 1]
    slope_precision, intercept_precision : float
        Inverse variances of each slope and of the intercepts' common level.
    position_precision : float
        Inverse variance of a position's intercept around that level.
    """

    slopes: Tensor
    intercept: Tensor
    slope_precision: float = 16.0
    intercept_precision: float = 1.0
    position_precision: float = 4.0


def newton_step(
    slopes: Tensor, intercepts: Tensor, counts: Tensor, accepted: Tensor, features: Tensor, prior: Prior
) -> tuple[Tensor, Tensor]:
    """Move slopes and intercepts towards the mode of their posterior.

    ``logit p = slopes . f + intercept_k``; the intercepts scatter around a common level, so that a position that has
    no labels of its own follows the others.

    Parameters
    ----------
    slopes : Tensor, shape [..., F], float64
    intercepts : Tensor, shape [..., K], float64
    counts, accepted : Tensor, shape [..., K, B], float64
        Labels and accepted drafts of every bin.
    features : Tensor, shape [..., K, B, F], float64
        Their mean in every bin.
    prior : Prior

    Returns
    -------
    slopes, intercepts : Tensor
        Moved along Newton's direction, within bounds, a typical draft's log-odds by no more than ``LARGEST_STEP``.
    """
    p = torch.sigmoid((features * slopes[..., None, None, :]).sum(dim=-1) + intercepts[..., None])
    variance, residual = counts * p * (1 - p), accepted - counts * p
    weighted = variance[..., None] * features
    c, b = variance.sum(dim=-1), weighted.sum(dim=-2)
    a = torch.einsum("...kbf,...kbg->...fg", weighted, features)
    g1, g0 = residual.sum(dim=-1), (residual[..., None] * features).sum(dim=(-2, -3))
    g1 = g1 + prior.position_precision * (common_level(intercepts, c, prior)[..., None] - intercepts)
    g0 = g0 + prior.slope_precision * (prior.slopes - slopes)
    # the arrowhead system: eliminating the intercepts leaves one equation for each slope
    share = b / (c + prior.position_precision)[..., None]
    identity = torch.eye(slopes.shape[-1], dtype=a.dtype, device=a.device)
    matrix = a + prior.slope_precision * identity - share.mT @ b
    slope_steps = _within(slopes, matrix, g0 - (share * g1[..., None]).sum(dim=-2))
    steps = (g1 - (b @ slope_steps[..., None])[..., 0]) / (c + prior.position_precision)
    typical = (features.abs() * counts[..., None]).sum(dim=(-2, -3)) / counts.sum(dim=(-1, -2))[..., None].clamp(
        min=1.0
    )
    largest = (slope_steps.abs() * typical).sum(dim=-1).maximum(steps.abs().amax(dim=-1))
    kept = (LARGEST_STEP / largest.clamp(min=1e-12)).clamp(max=1.0)[..., None]
    moved = (slopes + kept * slope_steps).clamp(0.0, LARGEST_SLOPE)
    return moved, (intercepts + kept * steps).clamp(-INTERCEPT_BOUND, INTERCEPT_BOUND)


def _within(slopes: Tensor, matrix: Tensor, gradient: Tensor) -> Tensor:
    """Solve ``matrix @ steps = gradient``, where a slope that would leave its bounds only moves to the bound.

    The others are solved for again with that one held, as are then the intercepts: clamped afterwards, it would leave
    them where they belong to a slope that was not taken.

    Parameters
    ----------
    slopes, gradient : Tensor, shape [..., F]
    matrix : Tensor, shape [..., F, F]
    """
    free_steps = torch.linalg.solve_ex(matrix, gradient)[0]
    wanted = slopes + free_steps
    held = (wanted < 0.0) | (wanted > LARGEST_SLOPE)
    taken = wanted.clamp(0.0, LARGEST_SLOPE) - slopes
    identity = torch.eye(slopes.shape[-1], dtype=matrix.dtype, device=matrix.device)
    both_free = ~(held[..., None] | held[..., None, :])
    rest = gradient - (matrix * held[..., None, :] @ taken[..., None])[..., 0]
    steps: Tensor = torch.linalg.solve_ex(
        torch.where(both_free, matrix, held[..., None] * identity), torch.where(held, taken, rest)
    )[0]
    return steps


def common_level(intercepts: Tensor, curvature: Tensor, prior: Prior) -> Tensor:
    """Where the intercepts lie together, shape [...]: their mean, each weighed by what it says, drawn to the prior."""
    weight = curvature * prior.position_precision / (curvature + prior.position_precision)
    total = prior.intercept_precision + weight.sum(dim=-1)
    return (prior.intercept_precision * prior.intercept + (weight * intercepts).sum(dim=-1)) / total
