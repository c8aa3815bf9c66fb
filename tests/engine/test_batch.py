from __future__ import annotations

import torch

from adaverify.engine.batch import Segment, pack
from adaverify.engine.kv_cache import NULL_BLOCK, LayerShape, PagedKV

CPU = torch.device("cpu")
BLOCK = 4
KV = PagedKV({0: LayerShape(1, 2, 2)}, 10, BLOCK, torch.float32, CPU)
SEGMENTS = [
    Segment([11, 12, 13], 6, [5, 2, 7], 3),
    Segment([21], 0, [3], 1),
    Segment([31, 32, 33, 34, 35, 36], 2, [1, 9], 0),
    Segment([41, 42], 7, [8, 4, 6], 1),
]


def packed(max_padded_query: int = 4):
    return pack(SEGMENTS, KV, CPU, max_padded_query)


def test_tokens_positions_and_logit_rows_follow_the_segments():
    batch = packed()
    assert batch.token_ids.tolist() == [[11, 12, 13, 21, 31, 32, 33, 34, 35, 36, 41, 42]]
    assert batch.positions.tolist() == [[6, 7, 8, 0, 2, 3, 4, 5, 6, 7, 7, 8]]
    assert batch.logit_rows.tolist() == [0, 1, 2, 3, 11]
    assert batch.token_ids.dtype == batch.positions.dtype == batch.logit_rows.dtype == torch.long


def test_slots_come_from_each_segments_own_blocks():
    expected = [
        segment.blocks[position // BLOCK] * BLOCK + position % BLOCK
        for segment in SEGMENTS
        for position in range(segment.start, segment.start + len(segment.token_ids))
    ]
    assert packed().context.slots.tolist() == expected


def test_positions_without_a_block_go_to_the_null_block():
    segments = [Segment([1, 2, 3], 3, [5], 1), Segment([4], 0, [6, 7, 8], 1), Segment([9], 30, [5], 1)]
    slots = pack(segments, KV, CPU, 4).context.slots
    assert (slots // BLOCK).tolist() == [5, NULL_BLOCK, NULL_BLOCK, 6, NULL_BLOCK]


def shapes(groups) -> list[tuple[int, ...]]:
    return [tuple(group.query_positions.shape) for group in groups]


def test_neighbouring_short_segments_share_a_group_and_long_ones_are_alone():
    groups = packed(max_padded_query=3).context.groups
    assert shapes(groups) == [(2, 3), (1, 6), (1, 2)]
    assert [(group.rows.start, group.rows.stop) for group in groups] == [(0, 4), (4, 10), (10, 12)]
    assert shapes(packed(max_padded_query=1).context.groups) == [(1, 3), (1, 1), (1, 6), (1, 2)]
    assert shapes(packed(max_padded_query=6).context.groups) == [(4, 6)]


def test_a_much_longer_context_is_not_padded_with_short_ones():
    contexts = [10, 20, 2000, 3000, 3100]
    segments = [Segment([1], context, [1] * (context // BLOCK + 1), 1) for context in contexts]
    assert shapes(pack(segments, KV, CPU, 4).context.groups) == [(2, 1), (3, 1)]


def test_group_pads_with_valid_rows_and_undoes_it():
    batch = packed(max_padded_query=3)
    short = batch.context.groups[0]
    assert short.pad.tolist() == [[0, 1, 2], [3, 3, 3]]
    assert short.pad.flatten()[short.unpad].tolist() == [0, 1, 2, 3]
    assert short.block_tables.tolist() == [[5, 2, 7], [3, NULL_BLOCK, NULL_BLOCK]]
    for group in batch.context.groups:
        own = batch.positions[0][group.rows]
        padded = own.view_as(group.query_positions) if group.pad is None else own[group.pad]
        assert torch.equal(group.query_positions, padded)


def test_equal_lengths_need_no_padding():
    segments = [Segment([1, 2], 3, [5, 6], 1), Segment([3, 4], 0, [1], 1)]
    (group,) = pack(segments, KV, CPU, 4).context.groups
    assert group.pad is None
    assert group.unpad is None
    assert group.query_positions.tolist() == [[3, 4], [0, 1]]


def test_block_table_is_no_wider_than_the_positions_need():
    batch = pack([Segment([1], 3, [5, 6, 7, 8], 1), Segment([1], 4, [1, 2, 3], 1)], KV, CPU, 4)
    assert batch.context.groups[0].block_tables.tolist() == [[5, NULL_BLOCK], [1, 2]]


def test_mask_is_causal_per_request_and_windowed():
    batch = pack([Segment([1, 2], 3, [5, 6], 1), Segment([1], 0, [1], 1)], KV, CPU, 4)
    group = batch.context.groups[0]
    mask = group.mask(None, 2, BLOCK, torch.float32)
    assert mask.shape == (2, 1, 4, 8)
    seen = mask[0, 0].eq(0).sum(-1).tolist()
    assert seen == [4, 5, 4, 5]
    assert mask[1, 0].eq(0).sum(-1).tolist() == [1, 1, 1, 1]
    windowed = group.mask(2, 1, BLOCK, torch.float32)
    assert windowed[0, 0].eq(0).nonzero().tolist() == [[0, 2], [0, 3], [1, 3], [1, 4]]
    assert windowed[0].isinf().sum() == 16 - 4
