from __future__ import annotations

import pytest

from adaverify.engine.block_pool import BlockPool, block_hash
from adaverify.engine.kv_cache import NULL_BLOCK

KEYS = [block_hash(b"", [i]) for i in range(6)]


def cached(pool: BlockPool, count: int) -> list[int]:
    """Blocks entered under the first ``count`` keys."""
    blocks = pool.allocate(count)
    for block, key in zip(blocks, KEYS, strict=False):
        pool.remember(block, key)
    return blocks


def test_hash_depends_on_tokens_and_on_everything_before():
    assert block_hash(b"", [1, 2]) == block_hash(b"", (1, 2))
    different = {block_hash(b"", [1, 2]), block_hash(b"", [2, 1]), block_hash(block_hash(b"", [9]), [1, 2])}
    assert len(different) == 3


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert BlockPool(4, 4).blocks_for(tokens) == blocks


def test_null_block_is_never_handed_out():
    pool = BlockPool(8, 4)
    assert pool.capacity == 7
    assert sorted(pool.allocate(7)) == [block for block in range(8) if block != NULL_BLOCK]
    assert pool.num_free == 0
    assert pool.usage == 1.0
    with pytest.raises(AssertionError, match="1 blocks asked, 0 free"):
        pool.allocate(1)


def test_freed_longest_ago_goes_first_and_of_one_request_its_last_block():
    pool = BlockPool(7, 4)
    first, second = pool.allocate(3), pool.allocate(3)
    pool.release(second)
    pool.release(first)
    assert pool.allocate(6) == [*second[::-1], *first[::-1]]


def test_shared_block_is_freed_by_the_last_holder_and_never_twice():
    pool = BlockPool(4, 4)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.release(blocks)
    assert pool.num_free == 2
    pool.release(blocks[:1])
    assert pool.num_free == 3
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(blocks[:1])


def test_find_prefix_stops_at_the_first_gap():
    pool = BlockPool(8, 4)
    blocks = cached(pool, 3)
    assert pool.find_prefix(KEYS) == blocks
    assert pool.find_prefix([KEYS[0], KEYS[5], KEYS[2]]) == blocks[:1]
    assert pool.find_prefix([KEYS[5], KEYS[0]]) == []


def test_free_blocks_stay_cached_until_handed_out_again():
    pool = BlockPool(4, 4)
    blocks = cached(pool, 3)
    pool.release(blocks)
    assert pool.find_prefix(KEYS) == blocks
    assert pool.allocate(1) == [blocks[2]]
    assert pool.find_prefix(KEYS) == blocks[:2]


def test_sharing_a_free_block_takes_it_from_the_free_list():
    pool = BlockPool(5, 4)
    blocks = cached(pool, 2)
    pool.release(blocks[1:])
    assert pool.num_free == 3
    assert pool.num_free_without(blocks) == 2
    pool.share(blocks)
    assert pool.num_free == 2
    assert not set(pool.allocate(2)) & set(blocks)
    assert pool.find_prefix(KEYS) == blocks


def test_tainted_blocks_leave_the_cache_even_while_others_hold_them():
    pool = BlockPool(5, 4)
    blocks = cached(pool, 2)
    pool.share(blocks[:1])
    pool.release(blocks, tainted=True)
    assert pool.num_free == 3
    assert pool.find_prefix(KEYS) == []
    pool.remember(blocks[0], KEYS[3])
    assert pool.find_prefix([KEYS[3]]) == blocks[:1]


def test_the_same_contents_are_remembered_once():
    pool = BlockPool(5, 4)
    first, second = pool.allocate(2)
    pool.remember(first, KEYS[0])
    pool.remember(second, KEYS[0])
    assert pool.find_prefix(KEYS) == [first]
    pool.release([second], tainted=True)
    assert pool.find_prefix(KEYS) == [first]
    pool.remember(first, KEYS[1])
    assert pool.find_prefix([KEYS[1]]) == []


def test_without_prefix_caching_nothing_is_found():
    pool = BlockPool(5, 4, enable_prefix_caching=False)
    cached(pool, 2)
    assert pool.find_prefix(KEYS) == []


def test_a_block_is_drafted_from_when_it_is_noted_until_it_is_handed_out_again():
    pool = BlockPool(num_blocks=4, block_size=2)
    blocks = pool.allocate(3)
    pool.note_drafted(blocks[0])
    pool.note_drafted(blocks[2])
    assert pool.num_drafted(blocks) == 1
    assert pool.num_drafted(blocks[2:]) == 1
    assert pool.num_drafted([]) == 0
    pool.release(blocks)
    assert pool.num_drafted(pool.allocate(3)) == 0
