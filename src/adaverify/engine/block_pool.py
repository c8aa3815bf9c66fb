"""Ownership of KV blocks: allocation, sharing, the prefix cache and its eviction."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from adaverify.engine.kv_cache import NULL_BLOCK

BlockHash = bytes


def block_hash(parent: BlockHash, token_ids: Sequence[int]) -> BlockHash:
    """Hash of a full block given its predecessor's: equal hashes mean equal whole prefixes."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """A fixed number of KV blocks, counted by reference.

    A freed block keeps its contents, and its place in the prefix cache, until it is handed out again;
    the block freed longest ago goes first.

    Parameters
    ----------
    num_blocks : int
        Including the null block, which is never handed out.
    block_size : int
        Tokens per block.
    enable_prefix_caching : bool
    """

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_blocks))
        self._references = [0] * num_blocks
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}
        self._drafted: set[int] = set()

    @property
    def capacity(self) -> int:
        """Blocks that requests can hold, all together."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks that no request holds."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return 1.0 - self.num_free / self.capacity

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Hand out ``count`` blocks; the caller has checked :attr:`num_free`."""
        assert count <= self.num_free, f"{count} blocks asked, {self.num_free} free"
        blocks = []
        for _ in range(count):
            block, _none = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int], tainted: bool = False) -> None:
        """Give back one reference to each block.

        Parameters
        ----------
        blocks : sequence of int
            In order of position; the last are evicted first.
        tainted : bool
            The contents may not be finite: take the blocks out of the prefix cache.
        """
        for block in reversed(blocks):
            assert self._references[block] > 0, f"block {block} released twice"
            self._references[block] -= 1
            if tainted:
                self._forget(block)
            if self._references[block] == 0:
                self._free[block] = None

    def find_prefix(self, hashes: Sequence[BlockHash]) -> list[int]:
        """Blocks of the longest cached prefix; no reference is taken."""
        blocks: list[int] = []
        if self.enable_prefix_caching:
            for key in hashes:
                block = self._block_of.get(key)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def num_free_without(self, blocks: Sequence[int]) -> int:
        """Free blocks left once ``blocks`` (some perhaps free themselves) have been taken."""
        return self.num_free - sum(block in self._free for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Take one more reference to each of ``blocks``, out of the free list if need be."""
        for block in blocks:
            self._free.pop(block, None)
            self._references[block] += 1

    def remember(self, block: int, key: BlockHash) -> None:
        """Enter a full block into the prefix cache, unless its contents are there already."""
        if self.enable_prefix_caching and key not in self._block_of and block not in self._hash_of:
            self._block_of[key] = block
            self._hash_of[block] = key

    def note_drafted(self, block: int) -> None:
        """The drafter, too, has read the tokens of a full block."""
        self._drafted.add(block)

    def num_drafted(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks``, from the first on, the drafter has read."""
        return next((i for i, block in enumerate(blocks) if block not in self._drafted), len(blocks))

    def _forget(self, block: int) -> None:
        self._drafted.discard(block)
        key = self._hash_of.pop(block, None)
        if key is not None:
            del self._block_of[key]
