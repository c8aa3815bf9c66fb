"""Projections of the same rows as one product.

For few rows a product takes as long as it takes to read its weights and to call it, and a small layer's weights are
read in the time of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn

# Names that transformers gives to layers which are all applied to one and the same tensor, in this order.
_GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class JointLinear(nn.Module):
    """Several linear layers of the same rows, computed when the first of them is asked for.

    Parameters
    ----------
    linears : sequence of nn.Linear
        As wide at the input, and all with a bias or all without.
    """

    def __init__(self, *linears: nn.Linear) -> None:
        super().__init__()
        self.widths = [linear.out_features for linear in linears]
        first = linears[0]
        with torch.device("meta"):
            self.product = nn.Linear(first.in_features, sum(self.widths), bias=first.bias is not None)
        weight = torch.cat([linear.weight for linear in linears])
        self.product.weight = nn.Parameter(weight, requires_grad=False)
        if first.bias is not None:
            self.product.bias = nn.Parameter(torch.cat([linear.bias for linear in linears]), requires_grad=False)
        self._rows: Tensor | None = None
        self._results: dict[int, Tensor] = {}

    def forward(self, rows: Tensor, index: int) -> Tensor:
        """Result [..., out] of layer ``index`` for ``rows`` [..., in]."""
        if rows is not self._rows or index not in self._results:
            self._rows, self._results = rows, dict(enumerate(self.product(rows).split(self.widths, dim=-1)))
        result = self._results.pop(index)
        if not self._results:  # activations are not held beyond their use
            self._rows = None
        return result


class Part(nn.Module):
    """Stands for one layer of a :class:`JointLinear`."""

    def __init__(self, joint: JointLinear, index: int) -> None:
        super().__init__()
        self.joint, self.index = joint, index
        self.in_features, self.out_features = joint.product.in_features, joint.widths[index]

    def forward(self, rows: Tensor) -> Tensor:
        """``rows`` [..., in] to [..., out]."""
        result: Tensor = self.joint(rows, self.index)
        return result


def fuse_projections(model: nn.Module) -> int:
    """Join the projections of queries, keys and values, and those of gates, of every layer; returns how many joints.

    Only layers that go by transformers' names are known to be applied to the same rows. The results are views of one
    tensor.
    """
    joints = 0
    for parent in list(model.modules()):
        for names in _GROUPS:
            linears = [getattr(parent, name, None) for name in names]
            if _can_join(linears):
                joint = JointLinear(*linears)
                joints += 1
                for index, name in enumerate(names):
                    setattr(parent, name, Part(joint, index))
    return joints


def _can_join(layers: Sequence[nn.Module | None]) -> TypeGuard[Sequence[nn.Linear]]:
    linears = [layer for layer in layers if type(layer) is nn.Linear]
    kinds = {(linear.in_features, linear.bias is None, linear.weight.dtype) for linear in linears}
    return len(linears) == len(layers) and len(kinds) == 1
