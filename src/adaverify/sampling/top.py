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


def largest_values(values: Tensor, width: int) -> Tensor:
    """The ``width`` largest values of each row, sorted downwards.

    Parameters
    ----------
    values : Tensor [N, V] float32
        NaN counts as largest.
    width : int
        At most V.

    Returns
    -------
    Tensor [N, width] float32
    """
    if values.device.type != "cpu":
        return values.topk(width, dim=-1).values
    rest = values.shape[-1] - width
    rows = values.numpy()
    top = np.partition(rows, rest, axis=-1)[:, rest:] if rest else rows.copy()
    top.sort(axis=-1)
    return torch.from_numpy(top).flip(-1)
