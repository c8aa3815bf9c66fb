"""Continuous batching: which requests run in the next step, and how much of each prompt.

Every decoding request takes part in every step. Prompts are computed in chunks that fill the rest of the
token budget. When KV blocks run out, the request admitted last is preempted and recomputed later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from adaverify.engine.block_pool import BlockPool
from adaverify.engine.request import Request, Status


@dataclass(frozen=True)
class PrefillChunk:
    """The next ``num_tokens`` uncomputed tokens of a request."""

    request: Request
    num_tokens: int

    @property
    def start(self) -> int:
        """Absolute position of the chunk's first token."""
        return self.request.num_computed

    @property
    def end(self) -> int:
        """Absolute position after the chunk's last token."""
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the chunk ends the known tokens, so that the next token is drawn."""
        return self.end == self.request.num_tokens


@dataclass(frozen=True)
class StepPlan:
    """What one step computes.

    Attributes
    ----------
    decodes : list of Request
        Each brings its last token and the drafts admitted for it.
    num_drafts : list of int
        Drafts that each of ``decodes`` can use.
    chunks : list of PrefillChunk
    max_draft_budget : int
        Drafts that still fit the token budget.
    started : list of Request
        Those that have just got a slot.
    """

    decodes: list[Request] = field(default_factory=list)
    num_drafts: list[int] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    max_draft_budget: int = 0
    started: list[Request] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.decodes and not self.chunks

    @property
    def num_non_draft_tokens(self) -> int:
        """Tokens of the step that are not drafts."""
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_sampling(self) -> int:
        """Requests that draw at least one token."""
        return len(self.decodes) + sum(chunk.samples for chunk in self.chunks)


class Scheduler:
    """Waiting and running requests, and the blocks they hold.

    Parameters
    ----------
    pool : BlockPool
    max_num_seqs : int
        Most requests running.
    max_num_batched_tokens : int
        Most tokens in one step.
    num_speculative_tokens : int
        K; 0 without speculation.
    """

    def __init__(
        self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int, num_speculative_tokens: int = 0
    ) -> None:
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.num_speculative_tokens = num_speculative_tokens
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self._free_slots = list(range(max_num_seqs))[::-1]

    def add(self, request: Request) -> None:
        """Queue a new request."""
        self.waiting.append(request)

    def schedule(self) -> StepPlan:
        """Plan the next step: every decode, then prompt chunks, then new requests."""
        preemptions_before = self.num_preemptions
        decodes = self._schedule_decodes()
        token_budget = self.max_num_batched_tokens - len(decodes)
        num_drafts = [request.max_drafts(self.num_speculative_tokens) for request in decodes]
        max_drafts = sum(num_drafts)
        # prompts always get half of what decoding leaves, and its last token, lest drafts starve them
        prefill_budget = max(token_budget - max_drafts, token_budget // 2, min(token_budget, 1))
        chunks = self._continue_prefills(prefill_budget)
        started = []
        if self.num_preemptions == preemptions_before:
            started = self._admit_waiting(prefill_budget - sum(chunk.num_tokens for chunk in chunks))
        chunks += started
        used = sum(chunk.num_tokens for chunk in chunks)
        return StepPlan(
            decodes=decodes,
            num_drafts=num_drafts,
            chunks=chunks,
            max_draft_budget=min(max_drafts, token_budget - used),
            started=[chunk.request for chunk in started],
        )

    def finish(self, request: Request) -> None:
        """Take a request out, whatever its state, and free its blocks."""
        if request.status is Status.WAITING:
            self.waiting.remove(request)
        elif request.status is Status.RUNNING:
            self._leave(request)
        request.status = Status.FINISHED

    def _schedule_decodes(self) -> list[Request]:
        """Decoding requests with blocks for their last token, and for as many drafts as the free blocks allow."""
        for request in list(self.running):
            if request.status is Status.RUNNING and request.is_decoding:
                self._grow(request)
        # by length, so that neighbours in the packed batch are padded to about their own
        decodes = sorted((request for request in self.running if request.is_decoding), key=lambda r: r.num_tokens)
        for request in decodes:
            self._make_draft_room(request)
        return decodes

    def _grow(self, request: Request) -> None:
        """Give a request blocks for its present tokens; the latest requests give way, itself included."""
        missing = self.pool.blocks_for(request.num_tokens) - len(request.blocks)
        while missing > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is request:
                return
        request.blocks += self.pool.allocate(max(0, missing))

    def _make_draft_room(self, request: Request) -> None:
        """Give a request blocks for its drafts while there are any: nobody is preempted for a draft."""
        wanted = request.num_tokens + request.useful_drafts(self.num_speculative_tokens)
        missing = self.pool.blocks_for(wanted) - len(request.blocks)
        request.blocks += self.pool.allocate(min(max(0, missing), self.pool.num_free))
        request.draft_room = len(request.blocks) * self.pool.block_size - request.num_tokens

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.reset()
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        """Take the seat and the blocks back from a running request."""
        self.running.remove(request)
        self._free_slots.append(request.slot)
        self.pool.release(request.blocks, tainted=request.tainted)
        request.blocks = []

    def _continue_prefills(self, token_budget: int) -> list[PrefillChunk]:
        chunks = []
        for request in self.running:
            if token_budget <= 0:
                break
            if not request.is_decoding:
                chunk = PrefillChunk(request, min(token_budget, request.num_tokens - request.num_computed))
                chunks.append(chunk)
                token_budget -= chunk.num_tokens
        return chunks

    def _admit_waiting(self, token_budget: int) -> list[PrefillChunk]:
        """Start waiting requests, first come first served, while seats, tokens and blocks last."""
        chunks = []
        while self.waiting and token_budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if not self._take_blocks(request):
                break
            self.waiting.popleft()
            request.status = Status.RUNNING
            request.slot = self._free_slots.pop()
            self.running.append(request)
            chunk = PrefillChunk(request, min(token_budget, request.num_tokens - request.num_computed))
            chunks.append(chunk)
            token_budget -= chunk.num_tokens
        return chunks

    def _take_blocks(self, request: Request) -> bool:
        """Blocks for all present tokens of a waiting request, cached ones first; False if too few are free."""
        # the last token is always computed: its logits give the next one
        full_blocks = (request.num_tokens - 1) // self.pool.block_size
        cached = self.pool.find_prefix(request.prefix_hashes(self.pool.block_size)[:full_blocks])
        missing = self.pool.blocks_for(request.num_tokens) - len(cached)
        # a block kept free for each running request, lest the newcomer is preempted at once
        if missing + len(self.running) > self.pool.num_free_without(cached) and self.running:
            return False
        self.pool.share(cached)
        request.blocks = cached + self.pool.allocate(missing)
        request.num_computed = len(cached) * self.pool.block_size
        request.num_draft_computed = self.pool.num_drafted(cached) * self.pool.block_size
        self.prefix_cache_queries += request.num_tokens
        self.prefix_cache_hits += request.num_computed
        if request.num_preemptions == 0:
            request.num_cached_tokens = request.num_computed
        return True
