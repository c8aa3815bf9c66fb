"""Survival of drafts, and which of them a draft budget admits."""

from __future__ import annotations

import torch
from torch import Tensor


def valid_prefix(confidences: Tensor, num_drafts: Tensor) -> Tensor:
    """Drafts of each request before its first non-finite confidence.

    Parameters
    ----------
    confidences : Tensor, shape [R, K], floating
    num_drafts : Tensor, shape [R], integer
        Drafts each request has, 0 to K.

    Returns
    -------
    Tensor, shape [R], int64
    """
    return _valid(confidences, num_drafts).sum(dim=1)


def survival(confidences: Tensor, num_drafts: Tensor) -> Tensor:
    """Chance that each draft counts: it and every draft before it are accepted.

    Parameters
    ----------
    confidences : Tensor, shape [R, K], floating, values in [0, 1]
        Chance that a draft is accepted once all drafts before it are.
    num_drafts : Tensor, shape [R], integer
        Drafts each request has, 0 to K.

    Returns
    -------
    Tensor, shape [R, K]
        Running product; 0 from the first non-finite confidence on and beyond ``num_drafts``.
    """
    return torch.where(_valid(confidences, num_drafts), confidences, 0.0).cumprod(dim=1)


def admit(survival: Tensor, num_valid: Tensor, budget: Tensor) -> Tensor:
    """Admit the ``budget`` best drafts of the batch, as one prefix per request.

    Drafts are ranked by (survival, then lower position, then lower row). A deeper draft never outranks a
    shallower one of its request, so whether draft i is admitted is decided by what precedes its draw; this is
    what keeps the output exact. Scores that are not a running product are made non-increasing first.

    Parameters
    ----------
    survival : Tensor, shape [R, K], floating
        Any score of draft i known before draft i is drawn.
    num_valid : Tensor, shape [R], integer
        Drafts of each request that may be admitted; see :func:`valid_prefix`.
    budget : Tensor, 0-dim, integer
        Drafts to admit.

    Returns
    -------
    Tensor, shape [R], int64
        Admitted drafts, never more than ``num_valid``; they sum to the budget where enough are valid.
    """
    R, K = survival.shape
    valid = torch.arange(K, device=survival.device) < num_valid[:, None]
    # A sort puts NaN first: one bad row would take the whole batch's budget.
    usable = valid & ~survival.isnan()
    running_minimum = torch.where(usable, survival, float("-inf")).cummin(dim=1).values
    # Position-major order and a stable sort break ties by lower position, then lower row.
    order = running_minimum.t().reshape(-1).sort(descending=True, stable=True).indices
    slots = torch.arange(R * K, device=survival.device)
    rank = torch.empty_like(order).scatter_(0, order, slots).view(K, R).t()
    return ((rank < budget) & valid).sum(dim=1)


def _valid(confidences: Tensor, num_drafts: Tensor) -> Tensor:
    positions = torch.arange(confidences.shape[1], device=confidences.device)
    usable = confidences.isfinite() & (positions < num_drafts[:, None])
    return usable.long().cumprod(dim=1).bool()
