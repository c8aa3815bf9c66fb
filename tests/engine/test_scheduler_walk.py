"""A random walk of arrivals, steps, rejections, failures and departures; what must hold is checked at every step."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from adaverify.engine.block_pool import BlockPool
from adaverify.engine.request import Request, Status
from adaverify.engine.scheduler import Scheduler, StepPlan
from adaverify.sampling.params import SamplingParams

BLOCK, K = 4, 3


class Walk:
    """A scheduler, a store that remembers which token was written where, and dice instead of models."""

    def __init__(self, seed: int, num_blocks: int, caching: bool, max_tokens: int) -> None:
        self.dice = random.Random(seed)
        self.pool = BlockPool(num_blocks + 1, BLOCK, caching)
        self.scheduler = Scheduler(self.pool, 5, max_tokens, num_speculative_tokens=K)
        self.stored: dict[tuple[int, int], int] = {}
        self.live: list[Request] = []
        self.max_len = min(40, num_blocks * BLOCK)
        self.num_finished = 0

    def arrive(self) -> None:
        # few distinct beginnings, so that prefixes are shared
        base = [self.dice.randrange(2)] * self.dice.randrange(1, 14) + [self.dice.randrange(3)]
        max_len = min(self.max_len, len(base) + self.dice.randrange(1, 24))
        one = Request("r", 0, SamplingParams(), base, len(base), 0, frozenset(), max_len)
        self.live.append(one)
        self.scheduler.add(one)

    def leave(self, one: Request, tainted: bool = False) -> None:
        one.tainted = tainted
        self.scheduler.finish(one)
        self.live.remove(one)
        self.num_finished += 1

    def write(self, one: Request, start: int, tokens: list[int]) -> None:
        for position, token in enumerate(tokens, start):
            self.stored[one.blocks[position // BLOCK], position % BLOCK] = token

    def step(self) -> None:
        plan = self.scheduler.schedule()
        self.check_plan(plan)
        for chunk in plan.chunks:
            self.write(chunk.request, chunk.start, chunk.request.token_ids[chunk.start : chunk.end])
        sampling = [(one, True) for one in plan.decodes] + [(c.request, False) for c in plan.chunks if c.samples]
        for chunk in plan.chunks:
            chunk.request.num_computed = chunk.request.num_draft_computed = chunk.end
        budget = plan.max_draft_budget
        for one, decoding in sampling:
            admitted = self.dice.randint(0, min(budget, one.max_drafts(K))) if decoding else 0
            budget -= admitted
            accepted = self.dice.randint(0, admitted)
            new = [self.dice.randrange(2) for _ in range(accepted + 1)]
            if decoding:
                drafts = new[:accepted] + [-1] * (admitted - accepted)
                self.write(one, one.num_tokens - 1, [one.token_ids[-1], *drafts])
                one.num_draft_computed = one.num_tokens + K - 1
            one.append(new, accepted)
            if one.num_tokens >= one.max_len:
                assert one.num_tokens == one.max_len
                one.remember_blocks(self.pool, min(one.num_computed, one.num_draft_computed))
                self.leave(one)
            elif self.dice.random() < 0.02:
                self.leave(one, tainted=True)
        for one in self.scheduler.running:
            one.remember_blocks(self.pool, min(one.num_computed, one.num_draft_computed))
        self.check_state()

    def check_plan(self, plan: StepPlan) -> None:
        assert plan.num_non_draft_tokens + plan.max_draft_budget <= self.scheduler.max_num_batched_tokens
        assert plan.max_draft_budget >= 0
        assert not plan.is_empty or not self.live, "unfinished requests and nothing to do: a hang"
        planned = plan.decodes + [chunk.request for chunk in plan.chunks]
        assert len(set(planned)) == len(planned)
        assert all(one.status is Status.RUNNING for one in planned)
        for one in plan.decodes:
            assert len(one.blocks) * BLOCK >= one.num_tokens + one.max_drafts(K)
        for chunk in plan.chunks:
            assert chunk.num_tokens > 0
            assert len(chunk.request.blocks) * BLOCK >= chunk.end

    def check_state(self) -> None:
        scheduler, pool = self.scheduler, self.pool
        held = Counter(block for one in scheduler.running for block in one.blocks)
        assert all(pool._references[block] == held[block] for block in range(pool.num_blocks))
        assert set(pool._free) == set(range(1, pool.num_blocks)) - set(held)
        assert len(scheduler.running) <= scheduler.max_num_seqs
        slots = [one.slot for one in scheduler.running] + scheduler._free_slots
        assert sorted(slots) == list(range(scheduler.max_num_seqs))
        assert sorted(map(id, [*scheduler.running, *scheduler.waiting])) == sorted(map(id, self.live))
        assert not any(one.blocks for one in scheduler.waiting)
        assert pool._block_of == {key: block for block, key in pool._hash_of.items()}
        for one in scheduler.running:
            computed = [self.stored[one.blocks[p // BLOCK], p % BLOCK] for p in range(one.num_computed)]
            assert computed == one.token_ids[: one.num_computed], "the store holds somebody else's tokens"


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("num_blocks", "max_tokens"), [(60, 64), (12, 64), (12, 7), (10, 5)])
def test_no_block_slot_or_token_is_lost(caching, num_blocks, max_tokens):
    preemptions = hits = 0
    for seed in range(8):
        walk = Walk(seed, num_blocks, caching, max_tokens)
        for _ in range(120):
            if walk.dice.random() < 0.4 and len(walk.live) < 12:
                walk.arrive()
            if walk.live and walk.dice.random() < 0.05:
                walk.leave(walk.dice.choice(walk.live))
                walk.check_state()
            walk.step()
        for _ in range(600):
            if not walk.live:
                break
            walk.step()
        assert not walk.live, "some requests never finish"
        assert walk.pool.num_free == walk.pool.capacity
        assert walk.num_finished > 10
        preemptions += walk.scheduler.num_preemptions
        hits += walk.scheduler.prefix_cache_hits
    assert preemptions > 0 or num_blocks == 60
    assert (hits > 0) == caching
