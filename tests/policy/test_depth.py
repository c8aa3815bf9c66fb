from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adaverify.errors import ConfigError
from adaverify.policy import (
    CostCurve,
    CostTable,
    DepthChoice,
    MaterializedCosts,
    Outlook,
    ProbeSchedule,
    choose_budget,
    choose_depth,
    worth_another_pass,
)


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value)


def choose(
    survival: Any,
    verify: list[float],
    draft: list[float],
    num_sampling: int | None = None,
    num_non_draft: int | None = None,
    max_budget: int | None = None,
) -> DepthChoice:
    """The choice where drafting to depth 1, 2, ... costs ``draft`` and a pass over 1, 2, ... tokens ``verify``."""
    rows = torch.tensor(survival)
    R = rows.shape[-2]
    costs = MaterializedCosts(
        torch.tensor([0.0, *draft], dtype=torch.float64)[:, None].expand(-1, R + 1).contiguous(),
        torch.tensor([verify[0], *verify], dtype=torch.float64),
    )
    most = rows.numel() if max_budget is None else max_budget
    counts = scalar(num_sampling or R), scalar(R), scalar(num_non_draft or R)
    return choose_depth(rows, *counts, costs, scalar(most))


def plain(choice: DepthChoice) -> tuple[int, int]:
    return int(choice.depth), int(choice.budget)


def test_drafts_as_deep_as_the_next_draft_pays() -> None:
    # the next draft must bring its share of what has been brought so far
    survival, verify = [[0.9, 0.7, 0.3, 0.1]], [10.0, 11.0, 12.0, 13.0, 14.0]
    assert plain(choose(survival, verify, [6.0, 12.0, 18.0, 24.0])) == (1, 1)
    assert plain(choose(survival, verify, [1.0, 2.0, 3.0, 4.0])) == (2, 2)
    assert plain(choose(survival, verify, [0.1, 0.2, 0.3, 0.4])) == (3, 3)
    assert plain(choose(survival, verify, [20.0, 40.0, 60.0, 80.0])) == (0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_matches_the_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    R, K, non_draft, sampling = 5, 4, 23, 4
    survival = np.cumprod(random.uniform(0.3, 1.0, (R, K)), axis=1)
    survival[2, 1:] = -1.0
    verify = np.sort(random.uniform(5, 30, 60))
    draft = np.sort(random.uniform(0, 8, K))
    most = int(random.integers(1, 17))
    reading = verify[non_draft - 1] - verify[R - 1]
    best = (0.0, 0, 0)
    for depth in range(K + 1):
        usable = survival[:, :depth]
        ranked = np.sort(usable[usable >= 0])[::-1][:most]
        for budget in range(len(ranked) + 1):
            cost = (draft[depth - 1] if depth else 0.0) + verify[non_draft + budget - 1] - reading
            best = max(best, ((sampling + ranked[:budget].sum()) / cost, -depth, -budget))
    choice = choose(survival.tolist(), verify.tolist(), draft.tolist(), sampling, non_draft, most)
    assert plain(choice) == (-best[1], -best[2])
    assert float(choice.rate) == pytest.approx(best[0])
    assert float(choice.cost) == pytest.approx(
        (draft[-best[1] - 1] if best[1] else 0) + verify[non_draft - best[2] - 1] - reading
    )


def test_the_budget_at_the_chosen_depth_is_that_of_choose_budget() -> None:
    random = torch.Generator().manual_seed(3)
    survival = torch.rand(6, 4, generator=random).cumprod(dim=1)
    table = CostTable(CostCurve((1, 8, 30), (10.0, 11.0, 18.0)), CostCurve((1,), (3.5,)), CostCurve((1,), (0.5,)))
    costs = table.materialize(6, 40, num_speculative_tokens=4)
    counts = scalar(6), scalar(6), scalar(6)
    choice = choose_depth(survival, *counts, costs, scalar(24))
    assert 0 < int(choice.depth) < 4
    shallow = survival.clone()
    shallow[:, int(choice.depth) :] = -1.0
    assert int(choice.budget) == int(choose_budget(shallow, *counts, costs, scalar(24), choice.depth)) > 0


def test_a_prompt_makes_no_draft_look_cheap() -> None:
    # A draft costs 2 ms and brings .3 of a token, the request's own token takes 6 ms; a prompt of ten takes 20 ms more.
    verify = [4.0 + 2.0 * n for n in range(20)]
    assert plain(choose([[0.3]], verify, [0.1])) == (0, 0)
    assert plain(choose([[0.3]], verify, [0.1], num_non_draft=11)) == (0, 0)
    # what would pay without the prompt pays beside it, where the curve is as steep
    assert plain(choose([[0.9]], verify, [0.1], num_non_draft=11)) == plain(choose([[0.9]], verify, [0.1])) == (1, 1)
    # and not where the prompt has filled up what was cheap
    knee = [4.0] * 5 + [4.0 + 5.0 * n for n in range(1, 16)]
    assert plain(choose([[0.9]], knee, [0.1])) == (1, 1)
    assert plain(choose([[0.9]], knee, [0.1], num_non_draft=11)) == (0, 0)


def test_of_equals_the_shallowest_and_smallest() -> None:
    assert plain(choose([[0.9, 0.0, 0.0]], [10.0, 11.0, 12.0, 13.0], [0.0, 0.0, 0.0])) == (1, 1)
    assert plain(choose([[-1.0, -1.0]], [10.0, 11.0, 12.0], [0.0, 0.0])) == (0, 0)


def test_nothing_is_trimmed_where_more_tokens_are_free() -> None:
    survival = [[0.9, 0.5, 0.1], [0.2, 0.01, 0.0]]
    assert plain(choose(survival, [7.0] * 10, [0.01, 0.02, 5.0])) == (2, 4)


@pytest.mark.parametrize("seed", range(4))
def test_over_scenarios_the_tokens_of_each_budget_are_averaged(seed: int) -> None:
    random = np.random.default_rng(seed)
    S, R, K = 3, 4, 3
    survival = np.cumprod(random.uniform(0.1, 1.0, (S, R, K)), axis=2)
    verify, draft = np.sort(random.uniform(5, 12, 30)), np.sort(random.uniform(0, 2, K))
    best = (0.0, 0, 0)
    for depth in range(K + 1):
        ranked = -np.sort(-survival[:, :, :depth].reshape(S, -1), axis=1)
        for budget in range(R * depth + 1):
            cost = (draft[depth - 1] if depth else 0.0) + verify[R + budget - 1]
            best = max(best, ((R + ranked[:, :budget].sum(axis=1).mean()) / cost, -depth, -budget))
    choice = choose(survival.tolist(), verify.tolist(), draft.tolist(), R, R, R * K)
    assert plain(choice) == (-best[1], -best[2])
    assert float(choice.rate) == pytest.approx(best[0])


def test_of_drafts_that_will_differ_the_worse_need_not_be_verified() -> None:
    verify, draft = [9.0, 10.0, 11.0, 12.0], [0.1]
    assert plain(choose([[0.5], [0.5]], verify, draft)) == (1, 2)
    # as good in the mean, but one of them will be hopeless
    assert plain(choose([[[0.95], [0.05]], [[0.05], [0.95]]], verify, draft)) == (1, 1)


def test_where_a_block_costs_the_same_at_any_depth_it_is_drafted_as_deep_as_pays_to_verify() -> None:
    survival, verify = [[0.9, 0.7, 0.1]], [10.0, 11.0, 12.0, 14.0]
    assert plain(choose(survival, verify, [3.0, 3.0, 3.0])) == (2, 2)
    assert plain(choose(survival, verify, [19.0, 19.0, 19.0])) == (0, 0)


def test_bounded_by_the_drafts_that_fit_and_by_the_table() -> None:
    survival, cheap = [[0.9, 0.8, 0.7]], [10.0, 10.1, 10.2, 10.3]
    assert plain(choose(survival, cheap, [0.1, 0.2, 0.3])) == (3, 3)
    assert plain(choose(survival, cheap, [0.1, 0.2, 0.3], max_budget=1)) == (1, 1)
    assert plain(choose(survival, cheap, [0.1, 0.2, 0.3], num_non_draft=3)) == (1, 1)
    assert plain(choose(survival, cheap, [0.1, 0.2, 0.3], num_non_draft=99)) == (0, 0)


def test_a_nan_counts_as_hopeless() -> None:
    verify, draft = [10.0, 10.0, 11.0, 12.0, 13.0, 14.0], [1.0, 2.0]
    nan = float("nan")
    assert plain(choose([[0.9, 0.8], [nan, nan]], verify, draft)) == plain(
        choose([[0.9, 0.8], [0.0, 0.0]], verify, draft)
    )


def worth(survival: list[float], draft_ms: float, verify_ms: float = 0.0, trims_later: bool = False) -> bool:
    """With an expected confidence of .5, at 2 tokens a millisecond."""
    rows = torch.tensor(survival)
    decided = worth_another_pass(rows, scalar(0.5), scalar(2.0), scalar(draft_ms), scalar(verify_ms), trims_later)
    return bool(decided)


def test_a_pass_pays_if_its_gain_is_worth_more_than_its_time() -> None:
    assert worth([0.9, 0.9], draft_ms=0.4)
    assert not worth([0.9, 0.9], draft_ms=0.5)
    assert not worth([0.9, 0.0], draft_ms=0.4)
    assert not worth([0.9, 0.9], draft_ms=0.4, verify_ms=0.1)
    assert not worth([0.0, 0.0], draft_ms=0.0)


def test_where_drafts_are_trimmed_later_the_bad_ones_do_not_count_against_the_good() -> None:
    assert not worth([1.0, 0.1], draft_ms=0.1, verify_ms=0.4)
    # half of .4 ms is worth .4 tokens: .5 - .4 against .2, then against .08
    assert not worth([1.0, 0.1], draft_ms=0.1, verify_ms=0.4, trims_later=True)
    assert worth([1.0, 0.1], draft_ms=0.04, verify_ms=0.4, trims_later=True)
    assert not worth([1.0, 0.1], draft_ms=0.04, verify_ms=0.4)


def test_probes_take_the_share_of_the_time_that_they_may() -> None:
    schedule, spent, probed = ProbeSchedule(0.01), 0.0, 0.0
    for step in range(5000):
        price = 30.0 if step < 2500 else 300.0
        spent += 60.0
        if schedule.is_due(price, 60.0):
            probed += price
            spent += price
    assert 0.008 < probed / spent <= 0.01


def test_probes_that_get_cheaper_do_not_follow_each_other() -> None:
    schedule = ProbeSchedule(0.01)
    assert sum(schedule.is_due(1e6, 60.0) for _ in range(10_000)) == 0
    assert sum(schedule.is_due(60.0, 60.0) for _ in range(100)) == 1
    assert not any(schedule.is_due(0.0, 60.0) for _ in range(10)), "nothing to probe"
    with pytest.raises(ConfigError, match="share is 2"):
        ProbeSchedule(2.0)


def blocks(random: np.random.Generator, count: int, persistence: float, mean: float = 0.6) -> torch.Tensor:
    """Confidences [count, 2, 3] of successive blocks of two requests."""
    state, rows = np.zeros((2, 3)), []
    for _ in range(count):
        state = persistence * state + random.uniform(-0.2, 0.2, (2, 3))
        rows.append(mean + state)
    return torch.from_numpy(np.stack(rows)).clamp(0, 1)


@pytest.mark.parametrize("persistence", [0.0, 0.5])
def test_the_outlook_learns_mean_and_persistence(persistence: float) -> None:
    outlook = Outlook(3)
    last = torch.full((2, 3), torch.nan)
    drafted = torch.tensor([[True, True, False]] * 2)
    for confidences in blocks(np.random.default_rng(0), 3000, persistence):
        outlook.observe(last, confidences, drafted)
        last = confidences
    assert outlook.mean[:2].tolist() == pytest.approx([0.6, 0.6], abs=0.02)
    assert outlook.mean[2] == pytest.approx(0.8), "never drafted: as before"
    assert float(outlook.persistence) == pytest.approx(persistence, abs=0.04)
    expected = outlook.expect(torch.tensor([[0.9, torch.nan, 0.2]]))[0]
    assert float(expected[0]) == pytest.approx(0.6 + persistence * 0.3, abs=0.04)
    assert float(expected[1]) == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("requests", [1, 2, 7, 300])
def test_scenarios_differ_as_blocks_did_and_their_mean_is_what_is_expected(requests: int) -> None:
    outlook, last = Outlook(3), torch.full((2, 3), torch.nan)
    drafted = torch.tensor([[True, True, False]] * 2)
    seen = blocks(np.random.default_rng(0), 2000, 0.5)
    for confidences in seen:
        outlook.observe(last, confidences, drafted)
        last = confidences
    now = torch.full((requests, 3), 0.55)
    assert torch.equal(Outlook(3).scenarios(now), Outlook(3).expect(now).expand(len(outlook.scenarios(now)), -1, -1))
    rows = torch.cat([outlook.scenarios(now).flatten(0, 1) for _ in range(256)])
    torch.testing.assert_close(rows.mean(dim=0), outlook.expect(now)[0], rtol=0, atol=0.002)
    # of what the block before tells nothing is left: these are the innovations, uniform between -.2 and .2
    assert rows.std(dim=0)[:2].tolist() == pytest.approx([0.4 / 12**0.5] * 2, abs=0.01)
    assert (rows[:, 2] == rows[0, 2]).all(), "never drafted: nothing is known of how it differs"


def test_scenarios_are_chances() -> None:
    outlook, nothing = Outlook(1), torch.full((4, 1), torch.nan)
    for _ in range(200):
        outlook.observe(nothing, torch.tensor([[0.0], [1.0], [0.1], [torch.nan]]), torch.ones(4, 1).bool())
    rows = outlook.scenarios(torch.tensor([[0.99], [0.01]]))
    assert rows.min() == 0
    assert rows.max() <= 1
    assert rows.isfinite().all()


def test_the_outlook_forgets() -> None:
    outlook, nothing, all_drafted = Outlook(1, horizon=50), torch.full((1, 1), torch.nan), torch.ones(1, 1).bool()
    for value in (0.9, 0.1):
        for _ in range(400):
            outlook.observe(nothing, torch.tensor([[value]]), all_drafted)
        assert float(outlook.mean) == pytest.approx(value, abs=0.01)


def test_a_sick_drafter_spoils_its_own_outlook_and_no_number() -> None:
    outlook, nan = Outlook(2), torch.full((1, 2), torch.nan)
    for _ in range(200):
        outlook.observe(nan, nan, torch.ones(1, 2).bool())
    assert (outlook.mean < 0.05).all()
    assert outlook.expect(nan).isfinite().all()
    with pytest.raises(ConfigError, match="horizon is 0"):
        Outlook(2, horizon=0)


def test_a_sick_request_does_not_spoil_the_outlook_of_others() -> None:
    outlook, nan = Outlook(2), torch.full((2, 2), torch.nan)
    confidences = torch.tensor([[0.7, 0.6], [torch.nan, torch.nan]])
    for _ in range(200):
        outlook.observe(nan, confidences, torch.ones(2, 2).bool())
    assert outlook.mean.tolist() == pytest.approx([0.7, 0.6], abs=0.02)
