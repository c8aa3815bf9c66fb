"""Packing: tokens of many requests, each with its own length, in one ragged row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adaverify.engine.attention import PagedContext, QueryGroup
from adaverify.engine.kv_cache import NULL_BLOCK, PagedKV

# contexts this short are padded at hardly any cost
_SHORT_CONTEXT = 128


@dataclass(frozen=True)
class Segment:
    """Consecutive tokens of one request in the packed row.

    Attributes
    ----------
    token_ids : sequence of int
    start : int
        Absolute position of the first token.
    blocks : sequence of int
        The request's KV blocks, covering every position up to the last token's.
    num_logits : int
        How many of the last tokens need logits.
    """

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]
    num_logits: int


@dataclass(frozen=True)
class PackedBatch:
    """One forward pass: T tokens of R requests.

    Attributes
    ----------
    token_ids, positions : Tensor [1, T], int64
    logit_rows : Tensor [N], int64
        Packed rows whose logits are needed, in segment order.
    context : PagedContext
    """

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    context: PagedContext


def pack(
    segments: Sequence[Segment],
    kv: PagedKV,
    device: torch.device,
    max_padded_query: int,
    first_key: int = 0,
    whole_segments: bool = False,
) -> PackedBatch:
    """Pack ``segments`` for a model whose keys and values live in ``kv``.

    Parameters
    ----------
    max_padded_query : int
        Segments up to this length are padded together; longer ones are attended alone.
    first_key : int
        Keys at positions before it are masked.
    whole_segments : bool
        Rows attend to their whole segment, as far as it has blocks, instead of up to themselves.
    """
    lengths = np.array([len(segment.token_ids) for segment in segments])
    starts = np.array([segment.start for segment in segments])
    firsts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    positions = np.repeat(starts - firsts, lengths) + np.arange(lengths.sum())
    token_ids = np.concatenate([np.asarray(segment.token_ids, dtype=np.int64) for segment in segments])
    slots = slots_of(segments, lengths, positions, kv.block_size)
    logit_rows = np.concatenate(
        [
            np.arange(first + length - segment.num_logits, first + length)
            for segment, first, length in zip(segments, firsts, lengths, strict=True)
        ]
    )
    groups = [
        _group(segments[i:j], lengths[i:j], starts[i:j], firsts[i:j], kv.block_size, device, first_key, whole_segments)
        for i, j in _runs(lengths, starts + lengths, max_padded_query)
    ]
    return PackedBatch(
        token_ids=_to(token_ids, device)[None],
        positions=_to(positions, device)[None],
        logit_rows=_to(logit_rows, device),
        context=PagedContext(kv=kv, slots=_to(slots, device), groups=groups),
    )


def _runs(lengths: np.ndarray, contexts: np.ndarray, max_padded_query: int) -> list[tuple[int, int]]:
    """Neighbouring segments (first, last + 1) that are attended together.

    Short queries share a call, long ones have their own; and a context more than twice as long as that of the
    run's first segment starts a new run, lest all are padded to the longest.
    """
    runs: list[tuple[int, int]] = []
    for i, (length, context) in enumerate(zip(lengths, contexts, strict=True)):
        first = runs[-1][0] if runs else 0
        alike = context <= 2 * contexts[first] + _SHORT_CONTEXT
        if runs and alike and length <= max_padded_query and lengths[first] <= max_padded_query:
            runs[-1] = (first, i + 1)
        else:
            runs.append((i, i + 1))
    return runs


def slots_of(segments: Sequence[Segment], lengths: np.ndarray, positions: np.ndarray, block_size: int) -> np.ndarray:
    """Slot of every packed token; a position without a block goes to the null block."""
    tables = _block_table([segment.blocks for segment in segments])
    rows = np.repeat(np.arange(len(segments)), lengths)
    index = positions // block_size
    known = index < tables.shape[1]
    blocks = np.where(known, tables[rows, np.where(known, index, 0)], NULL_BLOCK)
    return blocks * block_size + positions % block_size


def _group(
    segments: Sequence[Segment],
    lengths: np.ndarray,
    starts: np.ndarray,
    firsts: np.ndarray,
    block_size: int,
    device: torch.device,
    first_key: int,
    whole_segments: bool,
) -> QueryGroup:
    first = int(firsts[0])
    width = int(lengths.max())
    columns = np.minimum(np.arange(width)[None, :], lengths[:, None] - 1)
    query_positions = starts[:, None] + columns
    if whole_segments:
        room = np.array([len(segment.blocks) * block_size for segment in segments])
        ends = np.minimum(starts + lengths, room) - 1
        query_positions = np.repeat(ends[:, None], width, axis=1)
    valid = np.arange(width)[None, :] < lengths[:, None]
    num_blocks = -(-(starts + lengths) // block_size)
    tables = _block_table([segment.blocks[:n] for segment, n in zip(segments, num_blocks, strict=True)])
    return QueryGroup(
        rows=slice(first, first + int(lengths.sum())),
        query_positions=_to(query_positions, device),
        block_tables=_to(tables, device),
        pad=None if valid.all() else _to(firsts[:, None] - first + columns, device),
        unpad=None if valid.all() else _to(np.flatnonzero(valid), device),
        first_key=first_key,
    )


def _block_table(blocks: list[Sequence[int]]) -> np.ndarray:
    """Block lists as one int64 table [R, B], padded with the null block."""
    table = np.full((len(blocks), max(1, max(len(row) for row in blocks))), NULL_BLOCK, dtype=np.int64)
    for row, values in zip(table, blocks, strict=True):
        row[: len(values)] = values
    return table


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)
