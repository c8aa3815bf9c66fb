"""The largest values of each row: on a CPU by NumPy, whose vector instructions outrun the kernels of torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from adaverify.slices import row_slices

# Elements looked at together.
SLICE_ELEMENTS = 1 << 20


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entry of each row and its index, the first of several that are equal.

    Parameters
    ----------
    logits : Tensor [N, V] float

    Returns
    -------
    values : Tensor [N] float32
        NaN for a row that holds one.
    indices : Tensor [N] int64
    """
    if logits.device.type != "cpu":
        best, index = logits.max(dim=-1)
        return best.float(), index
    best, index = torch.empty(len(logits)), torch.empty(len(logits), dtype=torch.long)
    for part in row_slices(logits, SLICE_ELEMENTS):
        rows = logits[part].float()
        index[part] = torch.from_numpy(rows.numpy().argmax(axis=-1))
        best[part] = rows.gather(-1, index[part, None]).squeeze(-1)
    return best, index


def values_above(values: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """The values of each row that are larger than ``floor``, sorted downwards.

    A partition would find the largest in any row, but takes 20 times as long as a comparison where few are large.

    Parameters
    ----------
    values : Tensor [N, V] float32
        NaN is not larger than anything.
    floor : float
        0 or more.

    Returns
    -------
    values : Tensor [N, W] float32
        W is what the longest row needs, and at least 1; shorter ones end in zeros.
    counts : Tensor [N] int64
        How many values of each row are none of those zeros.
    """
    if values.device.type != "cpu":
        counts = (values > floor).sum(dim=-1)
        top = values.topk(max(1, int(counts.max())), dim=-1).values
        return torch.where(top > floor, top, 0.0), counts
    found = [row[np.flatnonzero(row > floor)] for row in values.numpy()]
    padded = np.zeros((len(found), max(1, *map(len, found))), dtype=np.float32)
    for window, kept in zip(padded, found, strict=True):
        kept.sort()
        window[: len(kept)] = kept[::-1]
    return torch.from_numpy(padded), torch.tensor([len(kept) for kept in found])
