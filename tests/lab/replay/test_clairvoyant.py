from __future__ import annotations

import itertools

import numpy as np
import pytest

from adaverify.lab.replay import Prices, Rounds, Traffic, replay
from adaverify.lab.replay.policies import default_policies
from adaverify.policy.cost import CostCurve, CostTable
from lab import synthetic
from lab.replay.small import Block, rounds_of, synthetic_rounds

STAIRS = CostTable(
    verify=CostCurve((1, 4, 8, 16), (5.0, 6.0, 9.0, 20.0), step_up_to=8), draft=CostCurve((1, 2, 3), (3.0, 3.3, 6.0))
)
DEAR_DRAFTS = CostTable(verify=CostCurve((1, 8), (5.0, 6.0)), draft=CostCurve((1, 2, 3), (1.0, 9.0, 9.5)))


def best_rate(rounds: Rounds, costs: CostTable, traffic: Traffic) -> float:
    """The largest rate over every way of drafting and verifying accepted drafts, by trying them all."""
    prices = Prices.of(costs, rounds, traffic.num_seats)
    steps = []
    for played in traffic.rounds:
        accepted = np.where(played >= 0, rounds.num_accepted[played], 0)
        ways = np.array(list(itertools.product(*(range(most + 1) for most in accepted))))
        tokens = (played >= 0).sum() + ways.sum(axis=1)
        steps.append(list(zip(tokens, prices.draft_ms(ways) + prices.verify_ms(tokens), strict=True)))
    return max(sum(t for t, _ in choice) / sum(c for _, c in choice) for choice in itertools.product(*steps)) * 1e3


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("costs", [STAIRS, DEAR_DRAFTS, synthetic.COSTS])
@pytest.mark.parametrize("seed", range(4))
def test_no_choice_of_drafts_is_faster(parallel: bool, costs: CostTable, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [
        Block("+" * n + "-..."[: 3 - n], request=r, step=s)
        for r in range(3)
        for s, n in enumerate(rng.integers(0, 4, 2).tolist())
    ]
    rounds = rounds_of(*blocks, drafts_in_parallel=parallel)
    traffic = Traffic.build(rounds, 3)
    result = replay(rounds, "clairvoyant", costs, traffic=traffic)
    assert result.tokens_per_second == pytest.approx(best_rate(rounds, costs, traffic), rel=1e-12)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("num_seats", [1, 8, 40])
def test_no_policy_is_faster(parallel: bool, num_seats: int) -> None:
    rounds = synthetic_rounds({"drafts_in_parallel": parallel}, steps_per_request=10)
    rounds.blocks.head_logit[:] = rounds.blocks.logit_q_max
    bound = replay(rounds, "clairvoyant", synthetic.COSTS, num_seats).tokens_per_second
    others = ["threshold:0.3", "threshold-trim:0.7", "head-stop:0.5", *default_policies(rounds)]
    rates = {name: replay(rounds, name, synthetic.COSTS, num_seats).tokens_per_second for name in others}
    assert {"oracle", "head", "estimator:paper", "fixed:4"} <= rates.keys()
    assert max(rates.values()) <= bound


def test_only_accepted_drafts_are_made() -> None:
    total = replay(synthetic_rounds(), "clairvoyant", synthetic.COSTS, 8).total
    assert total.drafted == total.admitted == total.accepted > 0


def test_large_batches_are_retraced_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = synthetic_rounds()
    whole = replay(rounds, "clairvoyant", synthetic.COSTS, 8)
    monkeypatch.setattr("adaverify.lab.replay.policies.cheapest._CELLS_AT_A_TIME", 200)
    parts = replay(rounds, "clairvoyant", synthetic.COSTS, 8)
    np.testing.assert_array_equal(parts.steps.admitted, whole.steps.admitted)
    assert parts.total.cost_ms == pytest.approx(whole.total.cost_ms)
