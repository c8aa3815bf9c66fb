from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify.policy import CostCurve, CostTable, MaterializedCosts, choose_budget


def scalar(value: int) -> torch.Tensor:
    return torch.tensor(value)


def choose(
    stale: list[list[float]],
    costs: MaterializedCosts,
    num_sampling: int = 1,
    num_non_draft: int = 1,
    max_budget: int | None = None,
) -> int:
    rows = torch.tensor(stale)
    most = rows.numel() if max_budget is None else max_budget
    arguments = scalar(num_sampling), scalar(len(stale)), scalar(num_non_draft)
    return int(choose_budget(rows, *arguments, costs, scalar(most)))


def table(*verify: float, draft: float | None = None, requests: int = 8) -> MaterializedCosts:
    """Costs of 1, 2, ... packed tokens."""
    curve = CostCurve(tuple(range(1, len(verify) + 1)), verify)
    return CostTable(curve, None if draft is None else CostCurve((1,), (draft,))).materialize(requests, len(verify))


def test_the_dspark_example() -> None:
    costs = table(1.0, 2.0, 1 / 0.45)
    assert choose([[0.8, 0.72]], costs) == 2
    assert choose([[0.8, 0.0]], costs) == 0


@pytest.mark.parametrize("seed", range(10))
def test_matches_the_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    R, K, non_draft, sampling = 5, 4, 23, 4
    stale = np.cumprod(random.uniform(0.3, 1.0, (R, K)), axis=1)
    stale[2] = -1.0
    steps = np.sort(random.uniform(5, 30, 60))
    costs = MaterializedCosts(torch.from_numpy(np.linspace([0, 1], [0, 3], 9, axis=1)), torch.from_numpy(steps))
    most = int(random.integers(0, 17))
    best_first = np.sort(stale[stale >= 0])[::-1][:most]
    tokens = sampling + np.concatenate([[0], np.cumsum(best_first)])
    verify = steps[R] + steps[non_draft : non_draft + len(tokens)] - steps[non_draft]
    expected = np.argmax(tokens / (costs.draft[-1, R].item() + verify))
    assert choose(stale.tolist(), costs, sampling, non_draft, most) == expected


def test_searches_past_a_step_of_the_staircase() -> None:
    # One more draft costs 8 for .9 of a token; four more cost no more than that.
    costs = table(10.0, 18.0, 18.0, 18.0, 18.0, 60.0)
    assert choose([[0.9, 0.8, 0.7, 0.6, 0.5]], costs) == 4


def test_drafting_is_part_of_the_price() -> None:
    stale = [[0.6]]
    assert choose(stale, table(10.0, 17.0)) == 0
    assert choose(stale, table(10.0, 17.0, draft=5.0)) == 1


@pytest.mark.parametrize("stale", [[[0.9, 0.5, 0.0], [0.2, 0.0, 0.0]], [[-1.0, -1.0, -1.0]] * 2, [[0.0] * 3] * 2])
def test_free_tokens_are_never_trimmed(stale: list[list[float]]) -> None:
    assert choose(stale, table(*[7.0] * 10), num_sampling=2, num_non_draft=2) == 6


def test_a_single_measured_size_trims_nothing() -> None:
    costs = CostTable(CostCurve((1,), (9.0,))).materialize(4, 32)
    assert choose([[0.01, 0.001]], costs) == 2


def test_the_smallest_of_equals() -> None:
    # A slot that surely fails adds no token and, on this step, no cost; the next token does cost.
    assert choose([[0.9, 0.0, 0.0]], table(10.0, 11.0, 11.0, 50.0)) == 1


def test_bounded_by_the_drafts_and_by_the_table() -> None:
    stale = [[0.9, 0.8, 0.7]]
    cheap = table(*np.linspace(10, 10.1, 8).tolist())
    assert choose(stale, cheap) == 3
    assert choose(stale, cheap, max_budget=2) == 2
    assert choose(stale, cheap, max_budget=0) == 0
    assert choose(stale, cheap, max_budget=99) == 3
    assert choose(stale, cheap, num_non_draft=6) == 2
    assert choose(stale, cheap, num_non_draft=8) == 0


def test_a_nan_does_not_set_the_batch_s_budget() -> None:
    costs = table(10.0, 14.0, 18.0, 22.0, 26.0)
    clean = choose([[0.9, 0.8], [0.0, 0.0]], costs)
    assert choose([[0.9, 0.8], [float("nan"), float("nan")]], costs) == clean == 2


def test_a_shallower_block_is_a_cheaper_one() -> None:
    curve = CostCurve((1, 2), (10.0, 17.0))
    costs = CostTable(curve, CostCurve((1,), (5.0,)), CostCurve((1,), (0.1,))).materialize(
        1, 2, num_speculative_tokens=3
    )
    one, stale = scalar(1), torch.tensor([[0.6]])
    budgets = [int(choose_budget(stale, one, one, one, costs, one, scalar(depth))) for depth in (1, 3)]
    assert budgets == [0, 1] == [0, int(choose_budget(stale, one, one, one, costs, one))]


def test_nobody_samples() -> None:
    assert choose([[-1.0, -1.0]], table(10.0, 12.0, 14.0), num_sampling=0, max_budget=0) == 0
