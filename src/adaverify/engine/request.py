"""One completion on its way through the engine."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from adaverify.engine.block_pool import BlockHash, BlockPool, block_hash
from adaverify.sampling.params import SamplingParams


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """One completion: its tokens, its KV blocks and how far they have been computed.

    Attributes
    ----------
    request_id, index : str, int
        The client's request, and which of its ``n`` completions this is.
    token_ids : list of int
        Prompt and output.
    seed : int
        Keys every draw of this completion.
    eos_token_ids : frozenset of int
    max_len : int
        Most tokens of prompt and output together.
    num_computed : int
        Tokens whose keys and values the target's store holds.
    num_draft_computed : int
        The same for the drafter's store.
    blocks : list of int
        KV blocks, shared by target and drafter.
    draft_room : int
        Tokens that the blocks can take beyond the present ones; set when a step is scheduled.
    slot : int
        Row of the per-request tensors of adaptive verification, while running.
    dataset : str
        What the client calls the prompt's origin; recorded in traces.
    tainted : bool
        A row of the target was not finite: its blocks must not stay in the prefix cache.
    """

    request_id: str
    index: int
    params: SamplingParams
    token_ids: list[int]
    num_prompt_tokens: int
    seed: int
    eos_token_ids: frozenset[int]
    max_len: int
    status: Status = Status.WAITING
    num_computed: int = 0
    num_draft_computed: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    draft_room: int = sys.maxsize
    slot: int = -1
    dataset: str = ""
    tainted: bool = False
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    _hashes: list[BlockHash] = field(default_factory=list)
    _num_remembered: int = 0
    _num_noted: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt's tokens."""
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @cached_property
    def ending_token_ids(self) -> frozenset[int]:
        """Tokens that end the completion."""
        eos = frozenset() if self.params.ignore_eos else self.eos_token_ids
        return eos | frozenset(self.params.stop_token_ids)

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token is left to compute, so that the next step samples."""
        return self.num_output_tokens > 0 and self.num_computed == self.num_tokens - 1

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.max_len - self.num_tokens

    def useful_drafts(self, num_speculative_tokens: int) -> int:
        """Drafts worth making: the last token allowed is never a draft."""
        return max(0, min(num_speculative_tokens, self.num_remaining - 1))

    def max_drafts(self, num_speculative_tokens: int) -> int:
        """Drafts that can be verified in this step: worth making, and with blocks to write to."""
        return max(0, min(self.useful_drafts(num_speculative_tokens), self.draft_room))

    def append(self, token_ids: Iterable[int], num_accepted: int) -> None:
        """Take the tokens of one round, of which the first ``num_accepted`` had been drafted.

        The target now holds all tokens but the last; the drafter those of the accepted drafts that it had read.
        """
        before = self.num_tokens
        self.token_ids.extend(token_ids)
        self.num_computed = min(before + num_accepted, self.num_tokens - 1)
        self.num_draft_computed = min(self.num_draft_computed, self.num_computed)

    def prefix_hashes(self, block_size: int) -> list[BlockHash]:
        """Hashes of all full blocks of the present tokens."""
        while (len(self._hashes) + 1) * block_size <= self.num_tokens:
            start = len(self._hashes) * block_size
            parent = self._hashes[-1] if self._hashes else b""
            self._hashes.append(block_hash(parent, self.token_ids[start : start + block_size]))
        return self._hashes

    def remember_blocks(self, pool: BlockPool, num_valid: int) -> None:
        """Enter the blocks that hold only the first ``num_valid``, final, tokens into the prefix cache.

        And note those of them that the drafter has read.
        """
        if self.tainted or not pool.enable_prefix_caching:
            return
        hashes = self.prefix_hashes(pool.block_size)
        last = min(num_valid // pool.block_size, len(hashes))
        for i in range(self._num_remembered, last):
            pool.remember(self.blocks[i], hashes[i])
        self._num_remembered = max(self._num_remembered, last)
        last = min(self.num_draft_computed // pool.block_size, self._num_remembered)
        for i in range(self._num_noted, last):
            pool.note_drafted(self.blocks[i])
        self._num_noted = max(self._num_noted, last)

    def reset(self) -> None:
        """Forget what was computed (the blocks are gone); the tokens stay."""
        self.num_computed = 0
        self.num_draft_computed = 0
        self._num_remembered = self._num_noted = 0
        self.status = Status.WAITING
