"""Linear layers whose weights lie as the processor's matrix unit reads them.

A bfloat16 product on a CPU with AMX or AVX-512 first copies its weights into tiles, at every call. For few rows, as in
decoding, the copy takes longer than the product. Here it happens once.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

# Smaller matrices gain nothing; some are also read directly.
_SMALLEST_SIDE = 16
# The layout hardly depends on it.
_ROWS_HINT = 16
# Up to so many rows every number has a product of its own; beyond, one in so many of an octave.
_EXACT_ROWS, _SIZES_PER_OCTAVE = 16, 8


class PackedLinear(nn.Module):
    """Computes what ``nn.Linear`` does, bit for bit.

    Parameters
    ----------
    linear : nn.Linear
        In bfloat16 on a CPU.
    packed : Tensor
        Its weight, from :func:`pack_weight`.
    keep_weight : bool
        Keep the plain weight, too, for those who share it; else ``weight`` only tells shape and dtype.
    """

    def __init__(self, linear: nn.Linear, packed: Tensor, keep_weight: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight if keep_weight else nn.Parameter(linear.weight.to("meta"), requires_grad=False)
        self.bias = linear.bias
        self.packed = packed

    def forward(self, rows: Tensor) -> Tensor:
        """``rows`` [..., in] to [..., out]."""
        count = rows.numel() // self.in_features
        padded = padded_rows(count)
        if padded == count:
            return self._product(rows)
        # what the rows behind hold does not matter: rows do not meet
        room = rows.new_empty(padded, self.in_features)
        room[:count] = rows.reshape(count, self.in_features)
        return self._product(room)[:count].view(*rows.shape[:-1], self.out_features)

    def _product(self, rows: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, self.packed, self.bias, "none", [], "")
        return result


def padded_rows(count: int) -> int:
    """Rows that are computed for ``count`` of them: up to an eighth more, 2 to 4% in the mean.

    oneDNN makes and keeps a program for every shape, in a millisecond and .6 MB; prompts come in all lengths.
    """
    if count <= _EXACT_ROWS:
        return count
    step = (1 << (count - 1).bit_length()) // (2 * _SIZES_PER_OCTAVE)
    return -(-count // step) * step


def pack_linears(*models: nn.Module) -> int:
    """Put a :class:`PackedLinear` in place of every linear layer that gains by it; returns how many.

    A weight that several layers share, such as a head that drafter and target have in common, is packed once. Does
    nothing where there is no such matrix unit, and to other dtypes or devices.
    """
    if not _can_pack():
        return 0
    uses = Counter(id(p) for model in models for module in model.modules() for p in module._parameters.values())
    packed: dict[int, Tensor] = {}
    # found first: layers must not change while they are walked; by name, so that plain weights are let go one by one
    found = [
        (parent, name)
        for model in models
        for parent in model.modules()
        for name, child in parent.named_children()
        if _gains(child)
    ]
    for parent, name in found:
        linear = getattr(parent, name)
        key = id(linear.weight)
        if key not in packed:
            packed[key] = pack_weight(linear.weight)
        setattr(parent, name, PackedLinear(linear, packed[key], keep_weight=uses[key] > 1))
    return len(found)


def packs(model: nn.Module) -> bool:
    """Whether :func:`pack_linears` would do anything to ``model``."""
    return _can_pack() and any(_gains(module) for module in model.modules())


def pack_weight(weight: Tensor) -> Tensor:
    """The same matrix in the layout of oneDNN's blocked products, opaque to everything else."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS_HINT)
    return result


def _can_pack() -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    names = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    return all(hasattr(torch.ops.mkldnn, name) for name in names) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _gains(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear:
        return False
    weight = layer.weight
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and min(weight.shape) >= _SMALLEST_SIDE
