"""Adaptive verification as served: what a replay adds to the engine's own decisions."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify.lab.replay import Rounds, Traffic, replay
from adaverify.policy.cost import CostCurve, CostTable
from lab import synthetic
from lab.replay.small import synthetic_rounds

FLAT = CostCurve((1,), (10.0,))
CHEAP = CostTable(CostCurve((1, 101), (10.0, 10.1)), CostCurve((1,), (0.04,)))


def traffic(rounds: Rounds, seats: int = 4, count: int = 400) -> Traffic:
    return Traffic.build(rounds, seats, 0, count)


def test_where_nothing_is_dear_everything_is_drafted_and_verified() -> None:
    rounds = synthetic_rounds(num_steps=60)
    av, most = (replay(rounds, policy, CHEAP, traffic=traffic(rounds)) for policy in ("av", "fixed:4"))
    assert av.lossless
    np.testing.assert_array_equal(av.steps.admitted, most.steps.admitted)
    assert av.tokens_per_second == most.tokens_per_second
    assert av.total.labels > 0


def test_where_drafting_does_not_pay_only_probes_draft() -> None:
    rounds = synthetic_rounds(num_steps=60)
    dear = CostTable(FLAT, CostCurve((1,), (40.0,)))
    steps = replay(rounds, "av", dear, traffic=traffic(rounds, count=8000)).steps
    drafting = steps.drafted > 0
    assert 0 < drafting.mean() < 0.005
    assert steps.draft_ms[~drafting].max() == 0
    assert (steps.admitted[drafting] == 16).all()


def test_it_drafts_only_as_deep_as_pays() -> None:
    # nothing is accepted behind the second draft
    rounds = synthetic_rounds(num_steps=100, intercepts=(3.0, 3.0, -9.0, -9.0))
    costs = CostTable(CostCurve((1, 101), (10.0, 20.0)), CostCurve((1,), (4.0,)))
    drafts = traffic(rounds, count=800)
    av = replay(rounds, "av", costs, traffic=drafts)
    late = av.steps.part(100, 200)
    assert np.median(late.drafted) == 8
    # the estimator alone drafts everything before it trims
    assert av.tokens_per_second > 1.05 * replay(rounds, "estimator:robust", costs, traffic=drafts).tokens_per_second
    assert av.refits[-1].num_refits > 1


def test_early_stops_follow_the_present_block() -> None:
    # a request at a time, verification nearly free: depth varies with what is drafted
    rounds = synthetic_rounds(num_steps=60, slope=1.5, intercepts=(0.0, 0.0, 0.0, 0.0))
    costs = CostTable(CostCurve((1, 101), (10.0, 10.1)), CostCurve((1,), (12.0,)))
    steps = replay(rounds, "av", costs, traffic=traffic(rounds, seats=1, count=200)).steps
    assert {1, 4} <= set(steps.drafted.tolist())
    assert steps.draft_ms == pytest.approx(3.0 * steps.drafted)


def test_a_parallel_drafter_makes_one_pass_or_none() -> None:
    rounds = synthetic_rounds({"drafts_in_parallel": True, "knows_q_before_draw": True}, num_steps=60)
    steps = replay(rounds, "av", synthetic.COSTS, traffic=traffic(rounds, seats=8)).steps
    drafted = steps.drafted > 0
    assert drafted.any()
    assert (steps.drafted[drafted] % 8 == 0).all(), "all draft equally deep"
    np.testing.assert_allclose(steps.draft_ms[drafted], steps.draft_ms.max())
