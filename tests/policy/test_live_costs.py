"""Costs learned from served steps, against laws that are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from adaverify.errors import ConfigError
from adaverify.policy import CostCurve, CostTable
from adaverify.policy.cost_filter import CostFilter
from adaverify.policy.live_costs import LiveCosts
from adaverify.policy.step import StepSize, StepTime

SEATS, TOKENS, DEPTH = 16, 1024, 7
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
START = CostTable(
    verify=CostCurve(SIZES, tuple(50.0 + 0.5 * size for size in SIZES)),
    draft=CostCurve((1, 4, 16), (20.0, 26.0, 50.0)),
)


@dataclass(frozen=True)
class Machine:
    """A law of step times that differs from the start-up table in every respect."""

    base: float = 70.0
    per_token: float = 0.4
    per_prompt_token: float = 0.25
    per_request: float = 0.8
    per_1000_context: float = 4.0
    per_1000_pairs: float = 0.6
    draft: float = 1.3
    speed: float = 1.0

    def time(self, size: StepSize, noise: float = 1.0) -> StepTime:
        verified = size.packed_tokens - size.prefill_tokens
        attention = self.per_1000_context * size.context_tokens + self.per_1000_pairs * size.pairs
        rest = self.base + self.per_token * verified + self.per_prompt_token * size.prefill_tokens
        rest += self.per_request * size.requests + attention / 1000
        draft = self.draft * (18.0 + 2.0 * size.requests) * (size.depth > 0)
        scale = noise / self.speed
        return StepTime(scale * draft, 0.8 * scale * rest, 0.2 * scale * rest)


def fresh(start: CostTable = START) -> LiveCosts:
    return LiveCosts(start, SEATS, TOKENS, DEPTH)


def traffic(seed: int = 0, requests: int = 16, context: int = 100) -> Iterator[StepSize]:
    """A batch whose contexts grow by about two tokens a step, trimmed in various ways, with a prompt now and then."""
    random = np.random.default_rng(seed)
    for step in range(100_000):
        total = requests * (context + 2 * step)
        prompt = int(random.integers(30, 200)) if step % 29 == 28 else 0
        drafts = int(random.integers(0, DEPTH * requests + 1)) if step % 3 else DEPTH * requests
        yield StepSize(requests + drafts + prompt, requests, total, prompt, prompt * prompt // 2, DEPTH)


def serve(
    costs: LiveCosts,
    machine: Machine,
    sizes: Iterator[StepSize],
    steps: int,
    noise: float = 0.0,
    seed: int = 1,
) -> np.ndarray:
    """Percent by which each step was mispredicted, by what had been learned before it."""
    random = np.random.default_rng(seed)
    errors = []
    for _, size in zip(range(steps), sizes, strict=False):
        time = machine.time(size, math.exp(noise * random.standard_normal()))
        errors.append(100 * abs(costs.predict(size) / time.total_ms - 1))
        costs.observe(size, time)
    return np.array(errors)


def decodes(drafts: int, requests: int = 8, context: int = 300) -> StepSize:
    return StepSize(requests + drafts, requests, requests * context, depth=DEPTH)


@pytest.mark.parametrize("size", [decodes(0), decodes(56), StepSize(70, 0, 0, 70, 2485), StepSize(1, 1, 10)])
def test_before_the_first_step_all_is_as_in_the_startup_table(size: StepSize) -> None:
    costs = fresh()
    tables = START.materialize(SEATS, TOKENS, num_speculative_tokens=DEPTH)
    drafting = tables.draft[-1, size.requests] if size.depth else 0.0
    assert costs.predict(size) == pytest.approx(float(tables.verify[size.packed_tokens] + drafting))
    assert costs.predict_startup(size) == pytest.approx(costs.predict(size))
    at = costs.at(size)
    assert torch.allclose(at.verify, tables.verify)
    assert torch.allclose(at.draft, tables.draft)


def test_a_known_law_is_recovered() -> None:
    costs, sizes = fresh(), traffic()
    serve(costs, Machine(), sizes, 200)
    assert np.median(serve(costs, Machine(), sizes, 200)) < 1
    assert costs.live_errors.median_percent < 2 < 20 < costs.startup_errors.median_percent


@pytest.mark.parametrize(("noise", "bar"), [(0.05, 4.5), (0.1, 8.5)])
def test_noise_is_averaged_out(noise: float, bar: float) -> None:
    """The median error of a perfect prediction is .67 times the noise."""
    errors = serve(fresh(), Machine(), traffic(), 400, noise)
    assert np.median(errors[50:]) < bar


def test_longer_contexts_cost_what_they_cost_also_where_none_was_that_long() -> None:
    costs, machine = fresh(), Machine()
    serve(costs, machine, traffic(), 300)
    short, long = decodes(40, context=100), decodes(40, context=1400)
    grown = machine.time(long).total_ms - machine.time(short).total_ms
    assert costs.predict(long) - costs.predict(short) == pytest.approx(grown, rel=0.35)


def test_a_draft_of_a_long_request_costs_more() -> None:
    costs = fresh()
    serve(costs, Machine(per_1000_pairs=2.0), traffic(), 400)
    short, long = (costs.at(decodes(0, context=context)).verify for context in (100, 1600))
    assert (long[48] - long[16]) - (short[48] - short[16]) > 0.5 * 32 * 1.5 * 2.0


def test_prompts_are_priced_by_themselves() -> None:
    costs, machine = fresh(), Machine(per_prompt_token=0.1)
    serve(costs, machine, traffic(), 300)
    without = decodes(40, requests=16, context=700)
    size = replace(without, packed_tokens=56 + 150, prefill_tokens=150, prefill_pairs=11_250)
    assert costs.predict(size) == pytest.approx(machine.time(size).total_ms, rel=0.05)
    assert costs.predict(size) - costs.predict(without) == pytest.approx(0.1 * 150 + 0.6 * 11.25, rel=0.4)


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.7, 1.4, 2.0, 5.0])
def test_a_lasting_change_of_speed_is_followed_within_twelve_steps(speed: float) -> None:
    costs, sizes = fresh(), traffic()
    serve(costs, Machine(), sizes, 300, noise=0.03)
    errors = serve(costs, Machine(speed=speed), sizes, 40, noise=0.03)
    assert errors[0] > 25
    assert np.median(errors[12:]) < 6


def test_a_jump_beyond_the_gate_is_believed_from_the_third_step_on() -> None:
    costs, sizes = fresh(), traffic()
    serve(costs, Machine(), sizes, 300)
    errors = serve(costs, Machine(speed=0.5), sizes, 4)
    assert min(errors[:3]) > 30
    assert errors[3] < 10


def test_slow_drift_is_followed() -> None:
    costs, sizes = fresh(), traffic()
    serve(costs, Machine(), sizes, 100)
    errors = [serve(costs, Machine(speed=0.995**step), sizes, 1)[0] for step in range(300)]
    assert np.median(errors) < 4


@pytest.mark.parametrize("factor", [10.0, 1e6, 1e-3])
def test_an_outlier_moves_nothing(factor: float) -> None:
    costs, machine, sizes = fresh(), Machine(), traffic()
    serve(costs, machine, sizes, 100)
    size = decodes(30)
    before = costs.at(size)
    for _ in range(2):
        costs.observe(size, machine.time(size, noise=factor))
        assert all(torch.equal(*pair) for pair in zip(before, costs.at(size), strict=True))
        costs.observe(size, StepTime(*[costs.predict(size) / 3] * 3))
        before = costs.at(size)


def test_the_influence_of_a_step_is_bounded() -> None:
    costs, machine, sizes = fresh(), Machine(), traffic()
    serve(costs, machine, sizes, 100)
    for factor in np.geomspace(0.05, 20, 60):
        size = next(sizes)
        before = costs.predict(size)
        costs.observe(size, machine.time(size, noise=factor))
        costs.observe(size, machine.time(size))
        assert 0.7 < costs.predict(size) / before < 1.4


def test_a_size_that_is_always_mispriced_is_learned_between_others_that_are_not() -> None:
    """One step in ten takes three times what it should: rare, and no accident."""
    costs = fresh()
    usual, rare = decodes(8), replace(decodes(0), packed_tokens=208, prefill_tokens=200, prefill_pairs=20_000)
    for _ in range(12):
        for _ in range(9):
            costs.observe(usual, StepTime(30.0, 50.0, 8.0))
        costs.observe(rare, StepTime(30.0, 400.0, 80.0))
    assert costs.predict(usual) == pytest.approx(88, rel=0.05)
    assert costs.predict(rare) == pytest.approx(510, rel=0.1)


def test_sizes_never_visited_keep_the_shape_of_the_start_at_the_present_speed() -> None:
    curve = CostTable(CostCurve((1, 256, 257, 1024), (10.0, 12.0, 60.0, 80.0)))
    costs = fresh(curve)
    for _ in range(100):
        costs.observe(StepSize(4, 4, 400), StepTime(0.0, 30.0, 0.0))
    assert costs.predict(StepSize(4, 4, 400)) == pytest.approx(30, rel=0.03)
    verify, start = costs.at(StepSize(4, 4, 400)).verify, curve.materialize(SEATS, TOKENS).verify
    assert (verify[257] - verify[256]) / verify[256] == pytest.approx(4, rel=0.1), "the stair from 12 to 60"
    ratios = (verify / start)[[4, 64, 300, 1024]]
    assert ratios.min() > 2.2
    assert ratios.max() < 3.5


def chaos(seed: int) -> Callable[[], tuple[StepSize, StepTime]]:
    random = np.random.default_rng(seed)

    def draw() -> tuple[StepSize, StepTime]:
        requests, prompt = int(random.integers(0, SEATS + 1)), int(random.integers(0, 400)) * int(random.integers(2))
        packed = min(max(1, requests * int(random.integers(1, 9)) + prompt), TOKENS)
        context = requests * int(random.integers(1, 5000))
        size = StepSize(packed, requests, context, min(prompt, packed), prompt * 3000, int(random.integers(0, 8)))
        return size, StepTime(*(10 ** random.uniform(-6, 6, size=3)))

    return draw


@pytest.mark.parametrize("seed", range(3))
def test_costs_stay_positive_finite_and_monotone_whatever_is_measured(seed: int) -> None:
    costs, draw = fresh(), chaos(seed)
    for _ in range(300):
        size, time = draw()
        costs.observe(size, time)
        assert 0 < costs.predict(size) < math.inf
        tables = costs.at(replace(size, packed_tokens=max(1, size.requests + size.prefill_tokens)))
        for table in (tables.verify, *tables.draft[1:]):
            assert table.isfinite().all()
            assert (table > 0).all()
            assert (table.diff() >= 0).all()
        longer = replace(size, context_tokens=2 * size.context_tokens, prefill_pairs=2 * size.prefill_pairs)
        assert costs.predict(longer) >= costs.predict(size)


def test_bounds_do_not_break_the_covariance() -> None:
    """Coefficients that sit on their bounds cannot move; the filter must not take its own word for it that they did."""
    random = np.random.default_rng(3)
    factors = random.normal(size=(8, 8))
    tracker = CostFilter(np.ones(8), factors @ factors.T / 8, np.full(8, 0.5), num_kinds=1)
    for _ in range(400):
        features = random.uniform(size=8) * (random.uniform(size=8) < 0.4) + 1e-3
        tracker.observe(features, 10 ** random.uniform(-2, 1), tracker.predict(features), 0)
        assert np.linalg.eigvalsh(tracker._covariance).min() > 0
        assert (tracker.coefficients >= 0.5).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("part", ["draft_ms", "verify_ms", "other_ms"])
def test_times_that_nothing_can_take_are_ignored(bad: float, part: str) -> None:
    costs, size = fresh(), decodes(10)
    for _ in range(5):
        costs.observe(size, replace(StepTime(30.0, 90.0, 10.0), **{part: bad}))
        costs.observe(size, StepTime(0.0, 0.0, 0.0))
    assert torch.equal(costs.at(size).verify, fresh().at(size).verify)
    assert costs.latest is None
    assert costs.live_errors.median_percent is None


def test_drafting_and_the_round_are_told_apart() -> None:
    costs, size = fresh(), decodes(20)
    for _ in range(60):
        costs.observe(size, StepTime(60.0, 55.0, 5.0))
    tables = costs.at(replace(size, packed_tokens=8))
    assert float(tables.draft[-1, 8]) == pytest.approx(60, rel=0.02)
    assert float(tables.verify[28]) == pytest.approx(60, rel=0.02)


def test_what_a_step_without_drafts_takes_is_the_round_s() -> None:
    costs, size = fresh(), replace(decodes(0), depth=0)
    for _ in range(60):
        costs.observe(size, StepTime(1.0, 95.0, 4.0))
    tables = costs.at(size)
    assert float(tables.verify[8]) == pytest.approx(100, rel=0.02)
    assert torch.allclose(tables.draft, START.materialize(SEATS, TOKENS, num_speculative_tokens=DEPTH).draft)


def test_the_drafter_s_reading_of_prompts_is_no_part_of_the_round() -> None:
    """Steps that draft tell what reading a prompt costs; those that only read are priced by it."""
    costs = fresh()

    def prompts(size: StepSize, tokens: int) -> StepSize:
        packed, pairs = size.packed_tokens + tokens, tokens * tokens // 2
        return replace(size, packed_tokens=packed, prefill_tokens=tokens, prefill_pairs=pairs)

    nothing = StepSize(0, 0, 0)
    for step in range(400):
        tokens = (100, 400)[step % 2]
        costs.observe(decodes(20), StepTime(30.0, 60.0, 5.0))
        costs.observe(prompts(decodes(20), tokens), StepTime(30.0 + 0.4 * tokens, 60.0 + 0.2 * tokens, 5.0))
        costs.observe(prompts(nothing, tokens), StepTime(0.4 * tokens, 50.0 + 0.2 * tokens, 5.0))
    assert costs.predict(decodes(20)) == pytest.approx(95, rel=0.03)
    for tokens in (100, 400):
        assert costs.predict(prompts(decodes(20), tokens)) == pytest.approx(95 + 0.6 * tokens, rel=0.03)
        assert costs.predict(prompts(nothing, tokens)) == pytest.approx(55 + 0.6 * tokens, rel=0.03)
    table = costs.at(prompts(decodes(0), 400)).verify
    assert float(table[428]) == pytest.approx(65 + 0.6 * 400, rel=0.03)


def test_free_drafting_stays_free_and_its_time_is_the_round_s() -> None:
    costs, size = fresh(CostTable(START.verify)), decodes(20)
    for _ in range(60):
        costs.observe(size, StepTime(7.0, 60.0, 3.0))
    tables = costs.at(size)
    assert not tables.draft.any()
    assert float(tables.verify[28]) == pytest.approx(70, rel=0.02)


def test_drafting_by_depth_keeps_its_shape() -> None:
    costs = fresh(START.with_equal_passes(DEPTH))
    for step in range(80):
        depth = 1 + step % DEPTH
        size = replace(decodes(10), depth=depth)
        costs.observe(size, StepTime(80.0 * depth / DEPTH, 60.0, 0.0))
    draft = costs.at(decodes(0)).draft
    assert draft.shape == (DEPTH + 1, SEATS + 1)
    assert not draft[0].any()
    assert torch.allclose(draft[1:, 8], 80.0 * torch.arange(1, DEPTH + 1).double() / DEPTH, rtol=0.03)
    assert (draft.diff(dim=0) >= 0).all()
    assert (draft.diff(dim=1) >= 0).all()
    assert costs.predict(decodes(0)) > costs.predict(replace(decodes(0), depth=2))


def test_what_a_step_that_drafts_takes_besides_is_the_same_at_any_depth() -> None:
    start = START.with_equal_passes(DEPTH)
    pass_ms = float(start.materialize(SEATS, TOKENS, num_speculative_tokens=DEPTH).draft[1, 8])

    def price(depths: tuple[int, ...]) -> torch.Tensor:
        costs = fresh(start)
        for step in range(100):
            depth = depths[step % len(depths)]
            costs.observe(replace(decodes(10), depth=depth), StepTime(6.0 + pass_ms * depth, 60.0, 0.0))
        return costs.at(decodes(0)).draft[:, 8]

    assert price((1, 2))[1:].tolist() == pytest.approx([6.0 + pass_ms * d for d in range(1, DEPTH + 1)], rel=0.04)
    # one depth cannot tell, but most of what is too much is taken for that
    once = price((1,))
    assert float(once[1]) == pytest.approx(6.0 + pass_ms, rel=0.02)
    assert pass_ms <= float(once[2] - once[1]) < pass_ms + 3.0
    assert float(price((1, 2))[0]) == 0.0


@pytest.mark.parametrize(
    "size", [StepSize(0, 0, 0), StepSize(TOKENS + 1, 1, 9), StepSize(40, SEATS + 1, 99), StepSize(4, 1, 9, 5)]
)
def test_refuses_a_step_that_the_table_does_not_reach(size: StepSize) -> None:
    for call in (fresh().predict, fresh().at, lambda size: fresh().observe(size, StepTime(1.0, 1.0, 1.0))):
        with pytest.raises(ConfigError, match="live costs reach up to 16 requests and 1024 packed tokens"):
            call(size)


def test_one_seat_and_a_table_of_one_size_will_do() -> None:
    costs = LiveCosts(CostTable(CostCurve((1,), (9.0,)), CostCurve((1,), (1.0,))), 1, 1, 1)
    for _ in range(20):
        costs.observe(StepSize(1, 1, 50, depth=1), StepTime(2.0, 16.0, 2.0))
    tables = costs.at(StepSize(1, 1, 50))
    assert tables.verify.tolist() == pytest.approx([18, 18], rel=0.05)
    assert float(tables.draft[-1, 1]) == pytest.approx(2, rel=0.05)


def test_what_the_drafter_has_not_read_is_priced_like_prompts_and_drafting_gets_no_dearer() -> None:
    """Steps that drafted nothing leave the drafter behind; the first that drafts has to read all of it."""
    costs, machine, sizes = fresh(), Machine(), traffic()
    for number, size in zip(range(600), sizes, strict=False):
        behind = 2000 * (number % 9 > 5)
        time = machine.time(size)
        reading = 0.5 * (size.prefill_tokens + behind)
        costs.observe(replace(size, backlog_tokens=behind), replace(time, draft_ms=time.draft_ms + reading))
    ordinary = StepSize(16, 16, 16 * 400)
    late = replace(ordinary, backlog_tokens=2000)
    assert float(costs.at(ordinary).draft[-1, 16]) == pytest.approx(1.3 * (18 + 32), rel=0.1)
    more = costs.at(late).draft - costs.at(ordinary).draft
    assert more[1:, 16].tolist() == pytest.approx([1000.0] * DEPTH, rel=0.2)
    assert float(more[0].abs().max()) == 0.0, "a step that drafts nothing reads nothing"
    assert costs.predict(late) == costs.predict(ordinary)
    drafting = replace(late, depth=DEPTH)
    assert costs.predict(drafting) - costs.predict(replace(drafting, backlog_tokens=0)) == pytest.approx(1000, rel=0.2)
