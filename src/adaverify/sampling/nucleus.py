"""Top-p where the nucleus is wide: by a histogram of probabilities, without sorting them."""

from __future__ import annotations

import torch
from torch import Tensor

# Bits of a float32 that a bucket does not tell apart: buckets are 3% wide, and what is sorted is one of them.
_SHIFT = 18
_BUCKETS = (0x3F800000 >> _SHIFT) + 2  # up to that of 1.0, and an empty one above


def nucleus(probs: Tensor, top_p: Tensor) -> Tensor:
    """Keep the most likely tokens down to the one at which their mass reaches ``top_p``, and all tied with it.

    The bits of positive numbers are ordered as the numbers are, so that their first bits are buckets of a histogram.
    It tells in which bucket the nucleus ends; only there the order matters.

    Parameters
    ----------
    probs : Tensor [N, V] float32
        Rows sum to 1.
    top_p : Tensor [N] float
        More than 0, less than 1.

    Returns
    -------
    Tensor [N, V] float32
        Renormalised, zero where dropped.
    """
    bucket = (probs.contiguous().view(torch.int32) >> _SHIFT).long().clamp_(0, _BUCKETS - 1)
    exact = probs.double()
    mass = exact.new_zeros(len(probs), _BUCKETS).scatter_add_(1, bucket, exact)
    from_bucket_on = mass.flip(-1).cumsum(dim=-1).flip(-1)
    needed = top_p.double().unsqueeze(-1)
    last = ((from_bucket_on >= needed).sum(dim=-1, keepdim=True) - 1).clamp_(min=0)
    above = from_bucket_on.gather(-1, last + 1)

    inside = bucket == last
    # at least one: where rounding leaves the mass of all below top_p the lowest bucket may be empty
    width = max(1, int(inside.sum(dim=-1).max()))
    members = torch.where(inside, probs, 0.0).topk(width, dim=-1).values
    reached = above + members.double().cumsum(dim=-1)
    end = (reached < needed).sum(dim=-1, keepdim=True).clamp_(max=members.shape[-1] - 1)
    exact *= probs >= members.gather(-1, end)
    return (exact / exact.sum(dim=-1, keepdim=True)).to(probs.dtype)
