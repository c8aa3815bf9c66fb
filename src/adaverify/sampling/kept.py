"""What min-p, top-k and top-p keep of a law: all tokens down to one probability."""

from __future__ import annotations

import torch
from torch import Tensor

from adaverify.sampling.top import largest_values

# What is kept rarely exceeds the first window, and hardly ever the next.
_FIRST_WINDOW = 1024
_WINDOW_GROWTH = 4


def has_top_k(top_k: Tensor, vocab: int) -> Tensor:
    """Rows that top-k may take something from, [N] bool."""
    return (top_k > 0) & (top_k < vocab)


def window_of(top_k: Tensor, filtered: Tensor, vocab: int) -> Tensor:
    """How many of its most likely tokens each row should be judged by at first, [N] int64; 0 if not ``filtered``."""
    # k + 1 show whether the k-th probability is tied with the next
    wanted = torch.where(has_top_k(top_k, vocab), (top_k + 1).clamp(max=_FIRST_WINDOW), _FIRST_WINDOW)
    return wanted.clamp(max=vocab) * filtered


def keep_most_likely_(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, width: int) -> Tensor:
    """Filter rows in place: zero what is dropped, renormalise what is kept; gives ``probs`` again.

    ``width`` is the largest of :func:`window_of`.
    """
    least, mass = _least_kept(probs, top_k, top_p, min_p, width)
    if probs.device.type == "cpu":
        # row by row in the processor's caches
        for row, below in zip(probs, least.nextafter(torch.zeros(())).tolist(), strict=True):
            torch.threshold_(row, below, 0.0)
    else:
        probs *= probs >= least.unsqueeze(-1)
    return probs.div_(mass.to(probs.dtype).unsqueeze(-1))


def _least_kept(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Least probability that each row keeps [N] float32, and what all it keeps sums to [N] float64."""
    vocab = probs.shape[-1]
    least, mass, resolved = _judge(largest_values(probs, width), top_k, top_p, min_p, vocab)
    if not bool(resolved.all()):
        wide = (~resolved).nonzero().squeeze(-1)
        wider = min(max(width, _FIRST_WINDOW) * _WINDOW_GROWTH, vocab)
        least[wide], mass[wide] = _least_kept(probs[wide], top_k[wide], top_p[wide], min_p[wide], wider)
    return least, mass


def _judge(top: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, vocab: int) -> tuple[Tensor, Tensor, Tensor]:
    """Filter the ``W`` largest probabilities of each row, sorted downwards.

    Returns
    -------
    least : Tensor [N] float32
    mass : Tensor [N] float64
    resolved : Tensor [N] bool
        Whether the row's result can be told from the window: nothing outside of it is kept or counted.
    """
    width = top.shape[-1]
    whole = width == vocab
    limited = has_top_k(top_k, vocab)
    kth = top.gather(-1, (top_k.clamp(1, width) - 1).unsqueeze(-1))
    keep = (top > 0) & (top >= top[:, :1] * min_p.unsqueeze(-1)) & ((top >= kth) | ~limited.unsqueeze(-1))

    mass = (top.to(torch.float64) * keep).cumsum(dim=-1)
    unrestricted = ~limited & (min_p <= 0)
    mass_known = unrestricted | ~keep[:, -1] | whole
    total = torch.where(unrestricted, 1.0, mass[:, -1])
    before_nucleus_end = mass < (top_p * total).unsqueeze(-1)
    last = before_nucleus_end.sum(dim=-1, keepdim=True).clamp(max=width - 1)
    keep &= (top >= top.gather(-1, last)) | (top_p >= 1).unsqueeze(-1)

    # what is kept comes first, as the window is sorted
    end = (keep.sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    least, mass = top.gather(-1, end).squeeze(-1), mass.gather(-1, end).squeeze(-1)
    return least, mass, mass_known & (~keep[:, -1] | whole)
