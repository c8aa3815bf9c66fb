"""The largest entries of each row, without looking for them among all."""

from __future__ import annotations

import torch
from torch import Tensor

# Entries whose maximum stands for all of them. More would be gathered from each block than it saves in blocks.
_BLOCK = 8
# Among so few blocks, ruling some out costs more than it saves.
_FEW_BLOCKS = 2


def largest(values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` largest entries of each row, sorted downwards, as ``torch.topk`` gives them.

    They lie in the ``width`` blocks with the largest maxima. Which of several equal entries is among them is not
    defined, as it is not by ``torch.topk``. On a CPU three times faster for 256 of 49,152.

    Parameters
    ----------
    values : Tensor [N, V] float
    width : int
        At most V.

    Returns
    -------
    values : Tensor [N, width]
    indices : Tensor [N, width] int64
    """
    rows, size = values.shape
    blocks = size // _BLOCK
    if blocks < _FEW_BLOCKS * width:
        top, index = values.topk(width, dim=-1)
        return top, index
    # a block's entries lie `blocks` apart, so that the maxima of neighbouring blocks are computed side by side
    maxima = values[:, : blocks * _BLOCK].view(rows, _BLOCK, blocks).amax(dim=1)
    chosen = maxima.topk(width, dim=-1, sorted=False).indices
    steps = blocks * torch.arange(_BLOCK, device=values.device)
    candidates = (chosen.unsqueeze(1) + steps.view(1, _BLOCK, 1)).view(rows, -1)
    if blocks * _BLOCK < size:
        tail = torch.arange(blocks * _BLOCK, size, device=values.device)
        candidates = torch.cat((candidates, tail.expand(rows, -1)), dim=-1)
    top, index = values.gather(-1, candidates).topk(width, dim=-1)
    return top, candidates.gather(-1, index)
