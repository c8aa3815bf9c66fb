"""What a step drafts, without a model: depth, budget and early stops by the planner's own rules."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from adaverify.engine.depth import PAUSE_EVERY, REST_STEPS, DepthPlanner, DraftChoice
from adaverify.engine.scheduler import StepPlan
from adaverify.policy import CostCurve, CostTable, MaterializedCosts, ProbeSchedule

K, SEATS = 4, 8
NEVER = ProbeSchedule(0.0)
# a token costs a tenth of a pass, a draft half of that
COSTS = CostTable(CostCurve((1, 40), (10.0, 49.0)), CostCurve((1,), (2.0,)), CostCurve((1,), (0.5,)))
# verification costs nearly nothing, a draft a tenth of a pass
CHEAP = CostTable(CostCurve((1, 40), (10.0, 10.4)), CostCurve((1,), (4.0,)), CostCurve((1,), (1.0,)))
DEAR = CostTable(CHEAP.verify, CostCurve((1,), (400.0,)), CostCurve((1,), (100.0,)))


def materialized(table: CostTable) -> MaterializedCosts:
    return table.materialize(SEATS, 64, num_speculative_tokens=K)


def asked(table: CostTable) -> Callable[[], MaterializedCosts]:
    return lambda: materialized(table)


def planner(in_parallel: bool = False, may_wait: bool = False, probes: ProbeSchedule = NEVER) -> DepthPlanner:
    """Confidences are the features themselves."""
    return DepthPlanner(K, SEATS, torch.device("cpu"), in_parallel, may_wait, lambda plan, f, margins, i: f, probes)


def plan(num_requests: int = 1, num_drafts: list[int] | None = None, most: int | None = None) -> StepPlan:
    each = num_drafts or [K] * num_requests
    requests = [SimpleNamespace(slot=slot) for slot in range(len(each))]
    return StepPlan(requests, each, [], sum(each) if most is None else most)  # type: ignore[arg-type]


def after(planner: DepthPlanner, rows: list[list[float]], table: CostTable = COSTS) -> DraftChoice:
    """The choice that follows blocks with these confidences, which fully persist."""
    step = plan(len(rows))
    planner.outlook._shared = planner.outlook._spread.clone()
    planner.choose(step, asked(table))
    planner.observe(step, torch.tensor(rows), K)
    planner.outlook._shared = planner.outlook._spread.clone()
    planner.outlook._deviations.zero_()
    return planner.choose(step, asked(table))


def test_where_drafts_compete_the_depth_is_chosen_and_kept() -> None:
    choice = after(planner(), [[0.95, 0.9, 0.85, 0.1], [0.2, 0.1, 0.1, 0.1]])
    assert choice.go_on is None
    assert choice.depth == 3
    assert int(choice.budget) == 3


def test_where_blocks_differ_more_than_their_mean_tells_only_the_best_are_verified() -> None:
    """Drafts that are accepted with .5 are all worth verifying, those that are .9 or .1 are not."""
    step, budgets, random = plan(8, num_drafts=[1] * 8), [], torch.Generator().manual_seed(0)
    for spread in (0.0, 0.4):
        one = planner()
        for _ in range(100):
            one.choose(step, asked(COSTS))
            rows = torch.full((8, K), torch.nan)
            rows[:, 0] = 0.5 + spread * torch.tensor([1.0, -1.0] * 4)[torch.randperm(8, generator=random)]
            one.observe(step, rows, 1)
        choice = one.choose(step, asked(COSTS))
        assert choice.depth == 1
        budgets.append(int(choice.budget))
    assert budgets[0] == 8
    assert 3 <= budgets[1] <= 5


def test_where_nothing_is_left_out_the_block_may_go_as_deep_as_it_likes_and_stop() -> None:
    choice = after(planner(), [[0.6, 0.1, 0.1, 0.1]], CHEAP)
    assert choice.depth == int(choice.budget) == K
    assert choice.go_on is not None
    assert choice.go_on(0, torch.tensor([0.9]), None)
    assert choice.go_on(1, torch.tensor([0.9]), None)
    assert not choice.go_on(2, torch.tensor([0.1]), None), "what survives is .08 of a draft"


def test_a_block_stops_at_once_where_its_first_draft_is_hopeless() -> None:
    for confidence in (0.05, float("nan")):
        choice = after(planner(), [[0.6] * K], CHEAP)
        assert not choice.go_on(0, torch.tensor([confidence]), None)


def test_requests_pay_for_a_pass_together() -> None:
    def goes_on(*confidences: float) -> bool:
        choice = after(planner(), [[0.6] * K] * 3, CHEAP)
        return choice.go_on(0, torch.tensor(confidences), None)

    assert goes_on(0.7, 0.7, 0.7)
    assert not goes_on(0.2, 0.2, 0.2)
    assert goes_on(0.99, 0.99, 0.0), "two that are sure make up for one that is not"


def test_a_request_without_room_for_more_does_not_ask_for_a_pass() -> None:
    for room, expected in (([2, 1], True), ([1, 1], False)):
        one = planner()
        choice = one.choose(plan(num_drafts=[*room]), asked(CHEAP))
        assert choice.go_on is not None
        assert choice.go_on(0, torch.tensor([0.99, 0.99]), None) == expected


def test_nothing_is_drafted_where_it_does_not_pay() -> None:
    choice = planner().choose(plan(3), asked(DEAR))
    assert (choice.depth, int(choice.budget), choice.go_on) == (0, 0, None)


def test_a_bad_block_is_held_against_a_request_for_one_step_only() -> None:
    one = planner()
    assert after(one, [[0.01] * K], CHEAP).depth == 0
    assert one.choose(plan(), asked(CHEAP)).depth == K


def test_a_new_request_does_not_inherit_a_block() -> None:
    one = planner()
    one.choose(plan(), asked(CHEAP))
    one.observe(plan(), torch.tensor([[0.01] * K]), K)
    one.start_request(0)
    assert one.choose(plan(), asked(CHEAP)).depth == K


def test_parallel_drafters_are_told_the_depth_before_the_block() -> None:
    hopeful, hopeless = [[0.9, 0.8, 0.01, 0.01]], [[0.01] * K]
    for may_wait in (False, True):
        choice = after(planner(True, may_wait), hopeful)
        assert choice.depth == 2
        assert (choice.budget is None) == may_wait
        assert choice.go_on is None
        assert after(planner(True, may_wait), hopeless).depth == 0


def test_with_coupled_verification_blocks_may_stop_while_drafts_compete() -> None:
    choice = after(planner(may_wait=True), [[0.95, 0.9, 0.85, 0.1], [0.2, 0.1, 0.1, 0.1]])
    assert choice.depth == K
    assert choice.budget is None
    assert choice.go_on is not None


@pytest.mark.parametrize("most", [0, 1, 2, 5, 8])
def test_no_more_is_drafted_than_can_be_verified(most: int) -> None:
    choice = planner().choose(plan(2, most=most), asked(CHEAP))
    if choice.go_on is not None:
        assert 2 * choice.depth <= most
    assert int(choice.budget) <= most
    assert (choice.depth == 0) == (most == 0)


def test_nothing_to_draft_is_no_choice() -> None:
    for empty in (StepPlan(), plan(num_drafts=[0, 0])):
        assert planner().choose(empty, asked(CHEAP)).depth == 0


@pytest.mark.parametrize("table", [CHEAP, DEAR])
def test_probes_draft_and_verify_everything_at_their_share_of_the_time(table: CostTable) -> None:
    one, costs, step = planner(probes=ProbeSchedule(0.2)), materialized(table), plan(2)
    probes = 0
    for _ in range(600):
        choice = one.choose(step, lambda: costs)
        if choice.depth == K and choice.go_on is None:
            assert int(choice.budget) == 2 * K
            probes += 1
    price = float(costs.draft[K, 2]) + 0.08
    # at least that of a step without drafts
    assert 0.2 * 10 / price * 600 * 0.9 <= probes
    assert probes * price <= 0.2 * (600 * 14.5 + probes * price)


def test_steps_without_drafts_are_tried_where_drafting_seems_to_pay() -> None:
    one, costs, step = planner(), materialized(CHEAP), plan(2)
    one.choose(step, lambda: costs)
    one.pauses = ProbeSchedule(0.01)
    without, chosen = float(costs.verify[2]), one._choose(step, torch.tensor([K, K]), costs)
    lost = without - 2 / float(chosen.rate)
    assert lost > 0, "the case is one where drafting pays"
    pauses = sum(one.choose(step, lambda: costs).depth == 0 for _ in range(2000))
    assert pauses * lost <= 0.01 * 2000 * float(chosen.cost)
    assert pauses > 0.9 * min(2000 / PAUSE_EVERY, 0.01 * 2000 * float(chosen.cost) / lost)


def test_a_tie_does_not_pause_every_step() -> None:
    one = planner()
    pauses = sum(one._pauses_now(0.0, 10.0) for _ in range(800))
    assert 0.85 * 800 / PAUSE_EVERY <= pauses <= 800 / PAUSE_EVERY
    one.pauses = ProbeSchedule(0.0)
    assert not any(one._pauses_now(5.0, 10.0) for _ in range(800))


def test_a_parallel_block_is_as_deep_as_its_price_allows() -> None:
    flat = CostTable(CHEAP.verify, CostCurve((1,), (1.0,)))
    first = [[0.9, 0.05, 0.05, 0.05]]
    assert after(planner(True, True), first, flat).depth == K, "deeper drafts cost nothing: confidences may choose"
    rising = CostTable(CHEAP.verify, CostCurve((1,), (9.0,)), CostCurve((1,), (1.0,)))
    assert after(planner(True, True), first, rising).depth == 1


class Asked:
    """Costs that count how often they are asked for, and may change."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.times = 0

    def __call__(self) -> MaterializedCosts:
        self.times += 1
        return materialized(self.table)


def test_where_drafting_does_not_pay_most_like_steps_are_not_thought_about() -> None:
    one, costs = planner(), Asked(DEAR)
    assert all(one.choose(plan(2), costs).depth == 0 for _ in range(2 + 3 * (REST_STEPS + 1)))
    assert costs.times == 2 + 3
    costs.table = CHEAP
    depths = [one.choose(plan(2), costs).depth for _ in range(REST_STEPS + 1)]
    assert depths.index(K) <= REST_STEPS, "nothing rests for longer"


def with_a_prompt() -> StepPlan:
    step = plan(2)
    chunk = SimpleNamespace(num_tokens=7, samples=False)
    return StepPlan(step.decodes, step.num_drafts, [chunk], step.max_draft_budget)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("other", "is_like"),
    [(plan(3), False), (with_a_prompt(), False), (plan(2, num_drafts=[K, 1]), True), (plan(2, most=5), True)],
)
def test_steps_of_other_requests_or_with_a_prompt_are_thought_about_at_once(other: StepPlan, is_like: bool) -> None:
    one, costs = planner(), Asked(DEAR)
    for _ in range(4):
        one.choose(plan(2), costs)
    before = costs.times
    one.choose(other, costs)
    assert costs.times == before + (not is_like)


def test_what_a_request_showed_is_thought_about_before_the_rest() -> None:
    one, costs = planner(), Asked(DEAR)
    one.choose(plan(), costs)
    one.choose(plan(), costs)
    one.observe(plan(), torch.tensor([[0.9] * K]), K)  # as after a probe
    before = costs.times
    one.choose(plan(), costs)
    one.choose(plan(), costs)
    assert costs.times == before + 2
    one.choose(plan(), costs)
    assert costs.times == before + 2
