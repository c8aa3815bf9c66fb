"""Losses between drafts and target, computed a few rows at a time so that a vocabulary's width stays in cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS_AT_ONCE = 64


class _Divergence(torch.autograd.Function):
    """KL(p || q) of each row, with its gradient q - p worked out on the way."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        """``logits`` and ``targets`` [N, V] to [N]."""
        divergence = logits.new_empty(len(logits), dtype=torch.float32)
        gradient = torch.empty_like(logits)
        for rows in _parts(len(logits)):
            log_q = logits[rows].float().log_softmax(-1)
            log_p = targets[rows].float().log_softmax(-1)
            p = log_p.exp()
            divergence[rows] = (p * (log_p - log_q)).sum(-1)
            gradient[rows] = (log_q.exp() - p).to(logits.dtype)
        ctx.save_for_backward(gradient)
        return divergence

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        """The gradient of each row, scaled."""
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0][:, None].to(gradient.dtype), None


def kl_divergence(logits: Tensor, targets: Tensor) -> Tensor:
    """KL(p || q) of each row of ``logits`` (draft) and ``targets`` (target's logits) [..., V], to [...] in nats."""
    flat = _Divergence.apply(logits.flatten(0, -2), targets.flatten(0, -2))
    return flat.view(logits.shape[:-1])


@torch.no_grad()
def total_variation(logits: Tensor, targets: Tensor) -> Tensor:
    """TV(p, q) of each row [..., V], to [...]: the chance that a draft is rejected (Leviathan et al. 2023)."""
    flat_logits, flat_targets = logits.flatten(0, -2), targets.flatten(0, -2)
    distance = logits.new_empty(len(flat_logits), dtype=torch.float32)
    for rows in _parts(len(flat_logits)):
        q, p = flat_logits[rows].float().softmax(-1), flat_targets[rows].float().softmax(-1)
        distance[rows] = 1.0 - torch.minimum(q, p).sum(-1)
    return distance.view(logits.shape[:-1])


def _parts(num_rows: int) -> list[slice]:
    return [slice(start, start + _ROWS_AT_ONCE) for start in range(0, num_rows, _ROWS_AT_ONCE)]
