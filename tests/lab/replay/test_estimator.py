"""The estimator in a replay against the engine's own speculation, step by step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify.config import SpeculativeConfig
from adaverify.drafters.base import DraftBlock
from adaverify.engine.scheduler import StepPlan
from adaverify.engine.speculation import Speculation
from adaverify.lab.replay import Rounds, Traffic, replay
from lab import synthetic
from lab.replay.small import synthetic_rounds


def engine_replay(
    rounds: Rounds, traffic: Traffic, head: bool = False, estimator: str = "paper"
) -> tuple[list[int], list[int], Speculation]:
    """Budgets, drafts admitted in each step, and the engine's speculation at the end."""
    K = rounds.num_speculative_tokens
    config = SpeculativeConfig(
        method="draft_model",
        model="none",
        num_speculative_tokens=K,
        enable_adaptive_verification=True,
        estimator=estimator,
        adaptive_draft_depth=False,
        live_costs=False,
    )
    drafter = SimpleNamespace(knows_q_before_draw=rounds.info.knows_q_before_draw, has_confidence_head=head)
    speculation = Speculation(config, drafter, traffic.num_seats, 10_000, torch.device("cpu"))  # type: ignore[arg-type]
    speculation.set_costs(synthetic.COSTS)
    budgets, admitted = [], []
    for played, started in zip(traffic.rounds, traffic.started, strict=True):
        seats = np.flatnonzero(played >= 0)
        rows = played[seats]
        num_drafts = rounds.blocks.num_drafts[rows].tolist()
        greedy = (rounds.blocks.temperature[rows] == 0).tolist()
        requests = [
            SimpleNamespace(slot=seat, params=SimpleNamespace(is_greedy=is_greedy))
            for seat, is_greedy in zip(seats.tolist(), greedy, strict=True)
        ]
        plan = StepPlan(requests, num_drafts, [], sum(num_drafts))  # type: ignore[arg-type]
        speculation.start_requests([request for request in requests if started[request.slot]])  # type: ignore[misc]
        budget = speculation.choose(plan).budget
        features = torch.from_numpy(rounds.blocks.logit_q_max[rows])
        confidence = torch.from_numpy(rounds.blocks.head_logit[rows]) if head else None
        current = speculation.admit(plan, DraftBlock(features.long(), features, None, confidence), budget)
        assert current is not None
        accepted = np.minimum(rounds.num_accepted[rows], current.admitted.numpy())
        speculation.observe(current, accepted.tolist(), rounds.blocks.telling[rows].tolist())
        speculation.end_step()
        budgets.append(int(current.budget))
        admitted.append(int(current.admitted.sum()))
    return budgets, admitted, speculation


@pytest.mark.parametrize("knows_q", [False, True])
@pytest.mark.parametrize(("num_seats", "mode"), [(5, "paper"), (12, "paper"), (12, "robust")])
def test_a_replay_decides_and_learns_as_the_engine_does(knows_q: bool, num_seats: int, mode: str) -> None:
    rounds = synthetic_rounds({"knows_q_before_draw": knows_q}, num_steps=170, steps_per_request=9)
    rounds.blocks.telling[rounds.blocks.request % 5 == 0] = False
    rounds.blocks.temperature[rounds.blocks.request % 3 == 0] = 0.0
    rounds.blocks.logit_q_max[40:42, 2] = np.nan
    traffic = Traffic.build(rounds, num_seats, seed=4)
    budgets, admitted, speculation = engine_replay(rounds, traffic, estimator=mode)
    result = replay(rounds, f"estimator:{mode}", synthetic.COSTS, traffic=traffic)
    assert result.steps.budget.tolist() == budgets
    assert result.steps.admitted.tolist() == admitted
    assert len(set(budgets)) > 5, "a budget that never moves shows nothing"
    last = result.refits[-1]
    assert last.num_refits == speculation.estimator.num_refits >= 1
    if mode == "robust":
        return  # what it shows of its memories moves with every label
    assert traffic.num_steps % 100 > 0
    assert last.slope == pytest.approx(float(speculation.estimator.slope), abs=1e-6)
    assert last.intercepts == pytest.approx(speculation.estimator.intercepts.tolist(), abs=1e-6)


def test_a_head_in_a_replay_decides_as_in_the_engine() -> None:
    rounds = synthetic_rounds(num_steps=60)
    rounds.blocks.head_logit[:] = 0.6 * rounds.blocks.logit_q_max
    rounds.blocks.logit_q_max[::7, 1] = np.nan
    traffic = Traffic.build(rounds, 8)
    budgets, admitted, _ = engine_replay(rounds, traffic, head=True)
    result = replay(rounds, "head", synthetic.COSTS, traffic=traffic)
    assert result.steps.budget.tolist() == budgets
    assert result.steps.admitted.tolist() == admitted


def test_labels_are_those_that_its_own_admission_earned() -> None:
    rounds = synthetic_rounds(num_steps=250)
    result = replay(rounds, "estimator:paper", synthetic.COSTS, 8)
    # each round that verifies anything labels its accepted drafts and the one behind them, if that was verified
    assert result.total.labels < (np.minimum(rounds.num_accepted + 1, 4)).sum()
    assert result.total.observed == pytest.approx(result.total.accepted / result.total.labels)


def test_the_estimator_finds_the_law_of_its_traffic() -> None:
    rounds = synthetic_rounds(num_steps=6000, slope=0.9, intercepts=(0.8, 0.4, 0.0, -0.4))
    result = replay(rounds, "estimator:paper", synthetic.COSTS, 16)
    assert result.refits[0].slope == 0.5
    # each refit forgets the labels before it, so a single one is noisy
    settled = result.refits[5:]
    assert np.mean([refit.slope for refit in settled]) == pytest.approx(0.9, abs=0.05)
    intercepts = np.mean([refit.intercepts for refit in settled], axis=0)
    np.testing.assert_allclose(intercepts, (0.8, 0.4, 0.0, -0.4), atol=0.1)
    first, *_, late = result.windows(10)
    assert abs(late.predicted - late.observed) < 0.02
    assert late.log_loss < first.log_loss
