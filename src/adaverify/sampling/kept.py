"""What min-p, top-k and top-p keep of a law: all tokens down to one probability."""

from __future__ import annotations

import torch
from torch import Tensor

from adaverify.sampling.top import values_above

# What is kept is rarely less likely than the first, and hardly ever than the second; nothing is less likely than 0.
_FLOORS = (2e-5, 5e-7, 0.0)


def has_top_k(top_k: Tensor, vocab: int) -> Tensor:
    """Rows that top-k may take something from, [N] bool."""
    return (top_k > 0) & (top_k < vocab)


def keep_most_likely_(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Filter rows in place: zero what is dropped, renormalise what is kept; gives ``probs`` again."""
    least, mass = _least_kept(probs, top_k, top_p, min_p, _FLOORS)
    if probs.device.type == "cpu":
        # row by row in the processor's caches
        for row, below in zip(probs, least.nextafter(torch.zeros(())).tolist(), strict=True):
            torch.threshold_(row, below, 0.0)
    else:
        probs *= probs >= least.unsqueeze(-1)
    return probs.div_(mass.to(probs.dtype).unsqueeze(-1))


def _least_kept(
    probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, floors: tuple[float, ...]
) -> tuple[Tensor, Tensor]:
    """Least probability that each row keeps [N] float32, and what all it keeps sums to [N] float64.

    Rows that are not settled by their probabilities above the first of ``floors`` are judged by the next.
    """
    limited = has_top_k(top_k, probs.shape[-1])
    floor, *lower = floors
    least, mass, settled = _judge(*values_above(probs, floor), top_k, top_p, min_p, limited, whole=not lower)
    if not bool(settled.all()):
        rows = (~settled).nonzero().squeeze(-1)
        least[rows], mass[rows] = _least_kept(probs[rows], top_k[rows], top_p[rows], min_p[rows], tuple(lower))
    return least, mass


def _judge(
    top: Tensor, counts: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, limited: Tensor, whole: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Filter the largest probabilities of each row, from :func:`~adaverify.sampling.top.values_above`.

    ``limited`` [N] says where top-k counts; ``whole`` that no row has others.

    Returns
    -------
    least : Tensor [N] float32
    mass : Tensor [N] float64
    settled : Tensor [N] bool
        Whether the row's result can be told from these: none of the others is kept or counted.
    """
    width = top.shape[-1]
    lowest = (counts - 1).clamp(min=0).unsqueeze(-1)
    kth = top.gather(-1, (top_k.clamp(1, width) - 1).unsqueeze(-1))
    keep = (top > 0) & (top >= top[:, :1] * min_p.unsqueeze(-1)) & ((top >= kth) | ~limited.unsqueeze(-1))

    mass = (top.to(torch.float64) * keep).cumsum(dim=-1)
    unrestricted = ~limited & (min_p <= 0)
    # where the lowest is dropped, so are all others
    mass_known = unrestricted | _drops(keep, lowest, counts) | whole
    total = torch.where(unrestricted, 1.0, mass[:, -1])
    before_nucleus_end = mass < (top_p * total).unsqueeze(-1)
    last = before_nucleus_end.sum(dim=-1, keepdim=True).clamp(max=width - 1)
    keep &= (top >= top.gather(-1, last)) | (top_p >= 1).unsqueeze(-1)

    # what is kept comes first, as the window is sorted
    end = (keep.sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    least, mass = top.gather(-1, end).squeeze(-1), mass.gather(-1, end).squeeze(-1)
    return least, mass, mass_known & (_drops(keep, lowest, counts) | whole)


def _drops(keep: Tensor, lowest: Tensor, counts: Tensor) -> Tensor:
    """Rows that have something and drop the ``lowest`` of it."""
    return ~keep.gather(-1, lowest).squeeze(-1) & (counts > 0)
