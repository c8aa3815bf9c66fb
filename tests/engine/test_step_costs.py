"""What steps take, by a clock that only the models move: nothing here depends on the machine that runs the test."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
from tests.support import TRIMMING_COSTS, plain_llm, token_ids

from adaverify import SamplingParams
from adaverify.engine.request import Request
from adaverify.engine.scheduler import PrefillChunk, StepPlan
from adaverify.engine.timing import StepTimer, backlog_tokens, step_size
from adaverify.policy.cost import CostCurve, CostTable
from adaverify.policy.probing import ProbeSchedule
from adaverify.policy.step import StepSize, StepTime

SIZE = StepSize(packed_tokens=10, requests=4, context_tokens=80, depth=3)
# by these more tokens cost next to nothing, and everything is verified
GENEROUS = CostTable(verify=CostCurve((1, 128), (10.0, 10.5)), draft=CostCurve((1, 64), (6.0, 7.0)))
# by these they cost something, if less than most drafts are worth
LENIENT = CostTable(verify=CostCurve((1, 128), (10.0, 22.0)), draft=CostCurve((1, 64), (1.0, 1.1)))


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Told(list):
    """Remembers sizes and times."""

    def __call__(self, size: StepSize, time: StepTime) -> None:
        self.append((size, time))


def walk(timer: StepTimer, clock: Clock, seconds: dict[str, float], is_idle: bool = False) -> None:
    """A step of 2 s drafting and a quarter learning, 3 s target, 1 s recording and a quarter of other things."""
    timer.begin(dict(seconds))
    clock.now += 2.0
    seconds["policy"] += 0.5  # a part of the drafting
    timer.drafted(SIZE, seconds)
    for part, spent in (("target", 2.5), ("sample", 0.5), ("record", 1.0), ("policy", 0.25), ("output", 0.25)):
        seconds[part] += spent
        clock.now += spent
    timer.end(seconds)
    if is_idle:
        timer.stop()


def parts() -> dict[str, float]:
    return dict.fromkeys(("policy", "target", "sample", "record", "output"), 7.0)


def test_a_step_lasts_until_the_next_begins() -> None:
    clock, told, seconds = Clock(), Told(), parts()
    timer = StepTimer(told, clock)
    walk(timer, clock, seconds)
    assert told == []
    clock.now += 0.25
    walk(timer, clock, seconds)
    ((size, time),) = told
    assert size == SIZE
    assert (time.draft_ms, time.verify_ms, time.other_ms) == pytest.approx((2250, 3000, 500))
    assert time.total_ms == pytest.approx(5750)


def test_waiting_for_requests_is_not_part_of_a_step() -> None:
    clock, told, seconds = Clock(), Told(), parts()
    timer = StepTimer(told, clock)
    walk(timer, clock, seconds, is_idle=True)
    assert told[0][1].total_ms == pytest.approx(5500)
    clock.now += 1000.0
    timer.begin(dict(seconds))
    assert len(told) == 1


def test_a_step_that_came_to_nothing_is_not_told_of() -> None:
    clock, told, seconds = Clock(), Told(), parts()
    timer = StepTimer(told, clock)
    for _ in range(3):
        timer.begin(dict(seconds))
        clock.now += 1.0
    assert told == []


def test_the_size_of_a_step_is_made_of_lengths() -> None:
    def request(tokens: int, computed: int = 0) -> Request:
        return Request("", 0, SamplingParams(), [0] * tokens, tokens, 0, frozenset(), 99, num_computed=computed)

    chunks = [PrefillChunk(request(9, computed=4), 3), PrefillChunk(request(2), 2)]
    plan = StepPlan([request(20), request(30)], [3, 3], chunks, 6)
    assert step_size(plan) == StepSize(7, 2, 50, prefill_tokens=5, prefill_pairs=5 + 6 + 7 + 1 + 2, depth=0)
    size = step_size(plan, num_drafts=4, depth=3)
    assert size == StepSize(11, 2, 50, prefill_tokens=5, prefill_pairs=21, depth=3)
    assert size.pairs == (2 + 4) * 25 + 21


def test_the_backlog_is_what_a_round_does_not_leave_unread() -> None:
    def request(tokens: int, read: int) -> Request:
        return Request("", 0, SamplingParams(), [0] * tokens, tokens, 0, frozenset(), 99, num_draft_computed=read)

    # up to the drafts and one more are unread after any round
    plan = StepPlan([request(20, 19), request(30, 26), request(50, 10)], [3, 3, 3], [], 3)
    assert backlog_tokens(plan) == 36
    assert step_size(plan, backlog=36).backlog_tokens == 36


def test_what_a_probe_reads_of_the_past_does_not_make_drafting_dearer(pair, clock, prompts) -> None:
    """Drafting does not pay here: only probes draft."""
    llm = live(pair, adaptive_draft_depth=True)
    llm.engine.speculation.depth_planner.probes = ProbeSchedule(0.05)
    drafter, sizes = llm.engine.speculation.drafter, []
    forward = drafter.runner.forward

    def slow_forward(segments):
        clock.now += 3e-3 * sum(len(segment.token_ids) for segment in segments)
        return forward(segments)

    slow_down(llm, clock, per_pass=30.0, per_token=0.5)
    drafter.runner.forward = slow_forward
    costs = llm.engine.speculation.live_costs
    observe = costs.observe
    with mock.patch.object(costs, "observe", lambda size, time: (sizes.append(size), observe(size, time))):
        long = SamplingParams(temperature=0.0, max_tokens=90, ignore_eos=True)
        for _ in range(3):
            llm.generate(prompts[:4], long)
    assert any(size.depth and size.backlog_tokens > 50 for size in sizes)
    # 3 passes over 4 requests at 3 ms a token; what else the probes took was their backlog
    assert float(costs.at(StepSize(4, 4, 200)).draft[-1, 4]) == pytest.approx(36, rel=0.1)


def slow_down(llm, clock: Clock, per_pass: float, per_token: float, drafting: float = 0.0) -> None:
    """Let the clock move by the target's passes and by drafting alone."""
    forward, propose = llm.engine.runner.forward, llm.engine.speculation.drafter.propose

    def slow_forward(segments):
        clock.now += (per_pass + per_token * sum(len(segment.token_ids) for segment in segments)) / 1e3
        return forward(segments)

    def slow_propose(requests, chunks, depth, *go_on):
        clock.now += drafting / 1e3 * (depth > 0)
        return propose(requests, chunks, depth, *go_on)

    llm.engine.timer.clock = clock
    llm.engine.runner.forward = slow_forward
    llm.engine.speculation.drafter.propose = slow_propose


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("adaverify.engine.engine.time", SimpleNamespace(perf_counter=clock))
    return clock


def live(pair, costs: CostTable = GENEROUS, **speculative):
    return pair.llm(costs=costs, speculative={"live_costs": True, **speculative})


def test_the_engine_learns_what_its_steps_take(pair, clock, prompts, greedy) -> None:
    llm = live(pair)
    slow_down(llm, clock, per_pass=30.0, per_token=0.5, drafting=12.0)
    for _ in range(2):
        llm.generate(prompts, greedy)
    stats = llm.stats()
    assert stats.step_error_percent["live"] < 5
    assert stats.step_error_percent["startup"] > 50
    assert stats.predicted_step_ms["live"] == pytest.approx(stats.step_ms, rel=0.1)
    costs = llm.engine.speculation.live_costs
    size = StepSize(40, 10, 250)
    assert float(costs.at(size).verify[40]) == pytest.approx(50, rel=0.1)
    assert float(costs.at(size).draft[-1, 10]) == pytest.approx(12, rel=0.1)


@pytest.mark.parametrize("coupled", [False, True])
def test_the_budget_follows_what_steps_take_and_the_text_does_not(pair, clock, prompts, reference, greedy, coupled):
    method = {"rejection_sample_method": "coupled"} if coupled else {}
    trimmed = {}
    for uses_live in (True, False):
        llm = live(pair, LENIENT, **method, live_costs=uses_live)
        slow_down(llm, clock, per_pass=3.0, per_token=1.0, drafting=1.0)
        for _ in range(2):
            assert token_ids(llm.generate(prompts, greedy)) == reference
        after = llm.stats()
        trimmed[uses_live] = sum(after.drafted) - sum(after.admitted)
        assert after.step_error_percent["live"] < after.step_error_percent["startup"]
    assert trimmed[False] < trimmed[True]


def test_a_budget_is_chosen_by_the_steps_before_and_by_lengths(pair, clock, prompts, greedy) -> None:
    llm = live(pair)
    slow_down(llm, clock, per_pass=1.0, per_token=2.0)
    costs, calls = llm.engine.speculation.live_costs, []
    observe, at = costs.observe, costs.at
    with (
        mock.patch.object(costs, "observe", lambda size, time: (calls.append(("observe", size)), observe(size, time))),
        mock.patch.object(costs, "at", lambda size, *device: (calls.append(("at", size)), at(size, *device))[1]),
    ):
        llm.generate(prompts[:4], greedy)
    kinds = [kind for kind, _ in calls]
    assert kinds.count("at") == kinds.count("observe") == llm.stats().num_steps
    assert kinds == ["at", "observe"] * llm.stats().num_steps, "a step is learned from when it is over"
    assert all(size.depth == 0 and size.packed_tokens == size.requests for kind, size in calls[2:] if kind == "at")


def test_time_between_steps_counts_and_waiting_does_not(pair, clock, prompts, greedy) -> None:
    llm = live(pair)
    slow_down(llm, clock, per_pass=40.0, per_token=0.0)
    costs = llm.engine.speculation.live_costs
    for i, prompt in enumerate(prompts[:2]):
        llm.engine.add_request(prompt, greedy, str(i))
    times = []
    while llm.engine.has_unfinished:
        llm.engine.step()
        clock.now += 0.015
        times.append(costs.latest and costs.latest.time.total_ms)
    assert times[0] is None
    assert times[1:-1] == pytest.approx([55.0] * (len(times) - 2))
    assert times[-1] == pytest.approx(40.0), "after the last step nothing is left to do"
    clock.now += 5000.0
    llm.generate(prompts[:1], greedy)
    assert costs.latest.time.total_ms == pytest.approx(40.0)


def test_the_last_request_s_abort_ends_the_step_before_the_waiting(pair, clock, prompts, greedy) -> None:
    llm = live(pair)
    slow_down(llm, clock, per_pass=40.0, per_token=0.0)
    llm.engine.add_request(prompts[0], greedy, "a")
    llm.engine.step()
    clock.now += 0.002
    llm.engine.abort("a")
    clock.now += 5000.0
    llm.generate(prompts[:1], greedy)
    assert llm.engine.speculation.live_costs.startup_errors.median_percent < 80
    assert llm.stats().step_ms == pytest.approx(40.0)


def test_start_up_costs_are_judged_too_where_the_budget_keeps_to_them(pair, clock, prompts, greedy) -> None:
    llm = live(pair, live_costs=False)
    slow_down(llm, clock, per_pass=30.0, per_token=0.5)
    llm.generate(prompts, greedy)
    assert set(llm.stats().step_error_percent) == set(llm.stats().predicted_step_ms) == {"live", "startup"}
    assert llm.engine.speculation.costs.verify.tolist() == GENEROUS.materialize(16, 128).verify.tolist()


def test_without_costs_there_is_nothing_to_keep_true(pair, prompts, greedy) -> None:
    for llm in (pair.llm(costs=None), plain_llm(pair.target)):
        llm.generate(prompts[:2], greedy)
        stats = llm.stats()
        assert (stats.step_ms, stats.predicted_step_ms, stats.step_error_percent) == (None, {}, {})


def test_a_recorded_step_is_not_blamed_for_the_recording(pair, clock, prompts, greedy) -> None:
    llm = live(pair, costs=TRIMMING_COSTS)
    slow_down(llm, clock, per_pass=40.0, per_token=0.0)

    class Observer:
        wants_overlaps = False

        def record(self, step) -> None:
            clock.now += 3.0

    llm.engine.observer = Observer()
    llm.generate(prompts[:2], greedy)
    assert llm.engine.speculation.live_costs.latest.time.total_ms == pytest.approx(40.0)
