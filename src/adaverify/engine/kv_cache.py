"""The paged KV store of one model: keys and values of all layers in blocks of fixed size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adaverify.engine.huge_pages import in_huge_pages

NULL_BLOCK = 0


@dataclass(frozen=True)
class LayerShape:
    """Key-value heads and head widths of one attention layer."""

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def width(self) -> int:
        """Elements per token."""
        return self.num_heads * (self.key_dim + self.value_dim)


class LayerKV:
    """Keys and values of one layer, side by side, so that one gather reads both.

    The store is [num_blocks * block_size, Hkv, Dk + Dv]; slot s is token s % block_size of block s // block_size.
    """

    def __init__(self, shape: LayerShape, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device):
        self.num_heads = shape.num_heads
        self.key_dim = shape.key_dim
        self.value_dim = shape.value_dim
        self.block_size = block_size
        size = (num_blocks * block_size, shape.num_heads, shape.key_dim + shape.value_dim)
        self.slots = in_huge_pages(torch.empty(size, dtype=dtype, device=device)).zero_()
        self.blocks = self.slots.view(num_blocks, -1)

    def write(self, slots: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Store ``key`` [Hkv, T, Dk] and ``value`` [Hkv, T, Dv] at ``slots`` [T], what is not finite as 0.

        A masked key still multiplies its value by 0, and 0 * nan is nan: the store must never hold one, or a
        request could spoil those that get its blocks, and a rejected draft the tokens before it.

        Returns
        -------
        Tensor [T], float32
            Sum of each token's keys and values: not finite if one of them is not, and six times cheaper than
            looking at each.
        """
        packed = torch.cat([key, value], dim=-1)
        total = packed.sum(dim=(0, 2), dtype=torch.float32)
        self.slots.index_copy_(0, slots, packed.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0).transpose(0, 1))
        return total

    def read(self, block_tables: Tensor) -> tuple[Tensor, Tensor]:
        """Gather keys [R, Hkv, L, Dk] and values [R, Hkv, L, Dv], L = B * block_size, of ``block_tables`` [R, B]."""
        num_requests, num_blocks = block_tables.shape
        gathered = self.blocks.index_select(0, block_tables.reshape(-1))
        gathered = gathered.view(num_requests, num_blocks * self.block_size, self.num_heads, -1).transpose(1, 2)
        return gathered[..., : self.key_dim], gathered[..., self.key_dim :]


class PagedKV:
    """Keys and values of every layer of one model.

    Parameters
    ----------
    shapes : dict of int to LayerShape
        By layer index, as the model's attention calls showed them.
    num_blocks : int
        Block 0 is the null block: padding reads and writes go there.
    block_size : int
        Tokens per block.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._layers = {index: LayerKV(shape, num_blocks, block_size, dtype, device) for index, shape in shapes.items()}

    @staticmethod
    def bytes_per_token(shapes: dict[int, LayerShape], dtype: torch.dtype) -> int:
        """Memory of one token over all layers, in bytes."""
        return sum(shape.width for shape in shapes.values()) * dtype.itemsize

    def layer(self, index: int) -> LayerKV:
        """The store of layer ``index``."""
        return self._layers[index]
