from __future__ import annotations

import pytest

from adaverify.engine.block_pool import BlockPool
from adaverify.engine.request import Request, Status
from adaverify.engine.scheduler import Scheduler
from adaverify.sampling.params import SamplingParams

BLOCK = 4


def request(tokens: list[int] | int, max_new: int = 20, name: str = "r") -> Request:
    token_ids = list(range(tokens)) if isinstance(tokens, int) else list(tokens)
    return Request(name, 0, SamplingParams(), token_ids, len(token_ids), 0, frozenset(), len(token_ids) + max_new)


def scheduler(blocks: int = 30, seqs: int = 4, tokens: int = 16, k: int = 0, caching: bool = True) -> Scheduler:
    return Scheduler(BlockPool(blocks + 1, BLOCK, caching), seqs, tokens, k)


def compute(sched: Scheduler, plan, token: int = 99) -> None:
    """Pretend to run a step in which no draft was accepted."""
    sampling = plan.decodes + [chunk.request for chunk in plan.chunks if chunk.samples]
    for chunk in plan.chunks:
        chunk.request.num_computed = chunk.request.num_draft_computed = chunk.end
    for one in sampling:
        one.append([token], 0)
        one.num_draft_computed = one.num_computed
    for one in sched.running:
        one.remember_blocks(sched.pool, one.num_computed)


def test_admits_first_come_first_served_while_seats_last():
    sched = scheduler(seqs=2)
    requests = [request([i] * 3) for i in range(3)]
    for one in requests:
        sched.add(one)
    plan = sched.schedule()
    assert [chunk.request for chunk in plan.chunks] == requests[:2] == plan.started == sched.running
    assert {one.slot for one in requests[:2]} == {0, 1}
    assert requests[2].status is Status.WAITING
    compute(sched, plan)
    sched.finish(requests[0])
    plan = sched.schedule()
    assert plan.decodes == [requests[1]]
    assert plan.started == [requests[2]]
    assert requests[2].slot == requests[0].slot


def test_long_prompts_are_cut_and_share_a_step():
    sched = scheduler(tokens=10)
    long, short = request(23), request([7] * 5)
    sched.add(long)
    sched.add(short)
    cuts = []
    while short.num_output_tokens == 0:
        plan = sched.schedule()
        assert plan.num_non_draft_tokens <= 10
        cuts.append([(chunk.start, chunk.end, chunk.samples) for chunk in plan.chunks])
        compute(sched, plan)
    assert cuts == [[(0, 10, False)], [(10, 20, False)], [(20, 23, True), (0, 5, True)]]


def test_decodes_come_before_prompts_and_prompts_get_half_of_the_rest():
    sched = scheduler(tokens=10, k=5)
    first, second = request([1] * 4), request([2] * 20)
    sched.add(first)
    compute(sched, sched.schedule())
    sched.add(second)
    plan = sched.schedule()
    assert plan.decodes == [first]
    assert [chunk.num_tokens for chunk in plan.chunks] == [4]
    assert plan.max_draft_budget == 5
    assert plan.num_non_draft_tokens + plan.max_draft_budget == 10


def test_drafts_never_take_the_last_token_that_a_prompt_needs():
    sched = scheduler(seqs=2, tokens=2, k=3)
    sched.add(request([1]))
    compute(sched, sched.schedule())
    late = request([2] * 3)
    sched.add(late)
    for _ in range(3):
        assert late.num_output_tokens == 0
        compute(sched, sched.schedule())
    assert late.num_output_tokens == 1


def test_drafts_stop_one_short_of_the_last_token():
    for room, expected in [(20, 3), (4, 3), (3, 2), (2, 1), (1, 0)]:
        one = request(4, max_new=room)
        assert one.max_drafts(3) == expected


def test_the_latest_is_preempted_and_comes_back_first():
    sched = scheduler(blocks=4, caching=False)
    early, late = request([1] * 7), request([2] * 3)
    sched.add(early)
    sched.add(late)
    compute(sched, sched.schedule())
    sched.add(request([3] * 2))
    steps = 0
    while not sched.num_preemptions:
        compute(sched, sched.schedule())
        steps += 1
        assert steps < 20
    assert sched.running == [early]
    assert sched.waiting[0] is late
    assert late.blocks == []
    assert late.num_computed == late.num_draft_computed == 0
    assert late.num_output_tokens > 0
    known = list(late.token_ids)
    sched.finish(early)
    plan = sched.schedule()
    assert plan.chunks[0].request is late
    assert (plan.chunks[0].start, plan.chunks[0].end, plan.chunks[0].samples) == (0, len(known), True)


def test_the_latest_itself_gives_way_when_it_grows():
    sched = scheduler(blocks=4, caching=False)
    early, late = request([1] * 6), request([2] * 8)
    sched.add(early)
    sched.add(late)
    compute(sched, sched.schedule())
    plan = sched.schedule()
    assert plan.decodes == [early]
    assert sched.running == [early]
    assert late.status is Status.WAITING
    assert plan.chunks == []


def test_prefix_of_a_finished_request_is_reused_but_never_the_whole_prompt():
    sched = scheduler()
    first = request(12)
    sched.add(first)
    compute(sched, sched.schedule())
    sched.finish(first)
    for tokens, hit in [(12, 8), (13, 12), (list(range(8)) + [50] * 4, 8), ([50, *range(11)], 0)]:
        again = request(tokens)
        before = sched.prefix_cache_hits
        sched.add(again)
        plan = sched.schedule()
        assert plan.chunks[0].start == hit == again.num_cached_tokens == sched.prefix_cache_hits - before
        sched.finish(again)


def test_running_requests_share_the_blocks_of_their_prefix():
    sched = scheduler()
    first, second = request(9), request([*range(8), 60, 61])
    sched.add(first)
    compute(sched, sched.schedule())
    sched.add(second)
    sched.schedule()
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    sched.finish(first)
    assert sched.pool.num_free == sched.pool.capacity - 3


def test_evicted_prefixes_are_not_found():
    sched = scheduler(blocks=6)
    first, other = request(12), request([9] * 20)
    for one in (first, other):
        sched.add(one)
        while not one.num_output_tokens:
            compute(sched, sched.schedule())
        sched.finish(one)
    again = request(12)
    sched.add(again)
    sched.schedule()
    assert again.num_cached_tokens == 4, "the first block was freed last and survives"


def test_tainted_requests_leave_nothing_in_the_prefix_cache():
    sched = scheduler()
    first = request(12)
    sched.add(first)
    compute(sched, sched.schedule())
    first.tainted = True
    sched.finish(first)
    assert sched.pool.num_free == sched.pool.capacity
    again = request(12)
    sched.add(again)
    sched.schedule()
    assert again.num_cached_tokens == 0


@pytest.mark.parametrize("state", ["waiting", "running", "preempted"])
def test_finish_from_any_state_gives_everything_back(state):
    sched = scheduler(blocks=6, seqs=1 if state == "waiting" else 4)
    one, other = request([1] * 6), request([2] * 6)
    sched.add(other)
    sched.add(one)
    compute(sched, sched.schedule())
    if state == "preempted":
        sched._preempt(one)
    assert one.status is (Status.RUNNING if state == "running" else Status.WAITING)
    sched.finish(one)
    assert one not in sched.waiting
    assert one not in sched.running
    sched.finish(other)
    assert sched.pool.num_free == sched.pool.capacity
    assert len(sched._free_slots) == sched.max_num_seqs
    assert sched.schedule().is_empty


def test_nobody_is_preempted_for_the_sake_of_drafts():
    """One block is left for the drafts of two requests: one drafts, the other goes on without."""
    sched = scheduler(blocks=5, k=3)
    first, second = request([1] * 7), request([2] * 7)
    for one in (first, second):
        sched.add(one)
    compute(sched, sched.schedule())
    assert sched.pool.num_free == 1
    plan = sched.schedule()
    assert plan.decodes == [first, second]
    assert sched.num_preemptions == 0
    assert [one.max_drafts(3) for one in plan.decodes] == [3, 0]
    assert plan.max_draft_budget == 3
