"""Attention over a paged KV store, plugged into any Hugging Face model through its attention interface.

A packed ragged row of tokens from many requests goes through the model unchanged; only here do tokens of
different requests part ways. Short queries (decode, verification, short chunks) of all requests are padded
into one call; each longer prefill chunk is a call of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from adaverify.engine.kv_cache import PagedKV

ATTENTION_NAME = "adaverify_paged"


@dataclass
class QueryGroup:
    """Requests whose queries are padded to one length and attended in one call.

    Attributes
    ----------
    rows : slice
        The packed rows of the group.
    query_positions : Tensor [R, Q], int64
        Absolute position of each padded query.
    block_tables : Tensor [R, B], int64
        KV blocks of each request, padded with the null block.
    pad : Tensor [R, Q], int64, optional
        Row of the group, counted from its first, of each padded query; padding repeats a valid row. None if
        all requests have Q queries: then nothing moves.
    unpad : Tensor [T_group], int64, optional
        Where each row of the group lies in the flattened padded result.
    first_key : int
        Keys at positions before it are masked: draft models without a row at position 0 have none there.
    """

    rows: slice
    query_positions: Tensor
    block_tables: Tensor
    pad: Tensor | None = None
    unpad: Tensor | None = None
    first_key: int = 0
    masks: dict[tuple[int | None, int, torch.dtype], Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, heads_per_kv: int, block_size: int, dtype: torch.dtype) -> Tensor:
        """Additive mask [R, 1, heads_per_kv * Q, L]: key j counts for query position t iff t - window < j <= t.

        And iff j is not before ``first_key``.
        """
        key = (window, heads_per_kv, dtype)
        if key not in self.masks:
            num_keys = self.block_tables.shape[1] * block_size
            keys = torch.arange(num_keys, device=self.query_positions.device)
            queries = self.query_positions[:, None, :, None]
            allowed = keys <= queries
            if window is not None:
                allowed &= keys > queries - window
            if self.first_key:
                allowed &= keys >= self.first_key
            mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
            self.masks[key] = mask.repeat(1, 1, heads_per_kv, 1)
        return self.masks[key]


@dataclass
class PagedContext:
    """What the attention function needs to know of one packed batch.

    Attributes
    ----------
    kv : PagedKV
        The model's own store.
    slots : Tensor [T], int64
        Slot to which each packed token's key and value are written.
    groups : list of QueryGroup
        Together they cover every packed row once, or there are none.
    total : Tensor [T], float32, optional
        Set by the pass: sum of a row's keys and values over all layers, finite only if all of them are.
    """

    kv: PagedKV
    slots: Tensor
    groups: list[QueryGroup]
    total: Tensor | None = None

    @property
    def without_queries(self) -> PagedContext:
        """The same batch where only keys and values are written; attention then gives zeros."""
        return replace(self, groups=[])


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: PagedContext,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Write the packed keys and values to the store, then attend each group to its requests' blocks.

    Parameters
    ----------
    query : Tensor [1, H, T, Dk]
    key : Tensor [1, Hkv, T, Dk]
    value : Tensor [1, Hkv, T, Dv]
    softcap, s_aux : optional
        Logit soft-capping (Gemma 2) and attention sinks (gpt-oss).

    Returns
    -------
    Tensor [1, T, H, Dv] and None
    """
    layer = paged.kv.layer(module.layer_idx)  # type: ignore[arg-type]
    total = layer.write(paged.slots, key[0], value[0])
    paged.total = total if paged.total is None else paged.total + total
    queries = query[0].transpose(0, 1)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    plain = softcap is None and s_aux is None
    shape = (queries.shape[0], queries.shape[1], layer.value_dim)
    output = queries.new_empty(shape) if paged.groups else queries.new_zeros(shape)
    for group in paged.groups:
        num_requests, length = group.query_positions.shape
        heads_per_kv = queries.shape[1] // layer.num_heads
        keys, values = layer.read(group.block_tables)
        own = queries[group.rows] if group.pad is None else queries[group.rows][group.pad]
        folded = own.reshape(num_requests, length, layer.num_heads, heads_per_kv, -1)
        folded = folded.permute(0, 2, 3, 1, 4).reshape(num_requests, layer.num_heads, heads_per_kv * length, -1)
        mask = group.mask(sliding_window, heads_per_kv, paged.kv.block_size, queries.dtype)
        if plain:
            attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        else:
            attended = _eager_attention(folded, keys, values, mask, scale, softcap, s_aux, length)
        attended = attended.view(num_requests, layer.num_heads, heads_per_kv, length, layer.value_dim)
        attended = attended.permute(0, 3, 1, 2, 4).reshape(num_requests * length, queries.shape[1], layer.value_dim)
        output[group.rows] = attended if group.unpad is None else attended[group.unpad]
    return output.unsqueeze(0), None


def _eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
    length: int,
) -> Tensor:
    """Attention with soft-capped scores and sinks, which the fused kernels lack."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        per_row = sinks.view(1, key.shape[1], -1, 1).expand(query.shape[0], -1, -1, length)
        scores = torch.cat([scores, per_row.reshape(*scores.shape[:-1], 1).to(scores.dtype)], dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights[..., : key.shape[2]], value)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Tell transformers to build no mask: requests part ways in :func:`paged_attention`."""


def register() -> None:
    """Make the paged attention known to transformers under :data:`ATTENTION_NAME`."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)
