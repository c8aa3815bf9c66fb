from __future__ import annotations

import numpy as np
import pytest

from adaverify.lab.replay import Traffic, compare, replay
from lab import synthetic
from lab.replay.small import Block, rounds_of, synthetic_rounds


def test_steps_decided_together_are_decided_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = synthetic_rounds(num_steps=40, steps_per_request=7)
    together = replay(rounds, "survival", synthetic.COSTS, 5)
    monkeypatch.setattr("adaverify.lab.replay.policies.ranked._DRAFTS_AT_A_TIME", 1)
    alone = replay(rounds, "survival", synthetic.COSTS, 5)
    np.testing.assert_array_equal(alone.steps.budget, together.steps.budget)
    np.testing.assert_array_equal(alone.steps.admitted, together.steps.admitted)
    assert len(set(together.steps.budget.tolist())) > 3


def test_the_recorded_number_of_seats_is_the_default_if_there_were_so_many_requests() -> None:
    assert replay(synthetic_rounds({"max_num_seqs": 6}), "fixed:1", synthetic.COSTS).concurrency == 6
    few = rounds_of(*(Block("+", request=r) for r in range(3)), max_num_seqs=6)
    assert replay(few, "fixed:1", synthetic.COSTS).concurrency == 3


def test_windows_add_up_to_the_total() -> None:
    result = replay(synthetic_rounds(), "estimator:paper", synthetic.COSTS, 8)
    windows, total = result.windows(7), result.total
    assert [window.first_step for window in windows] == [0, 14, 28, 42, 57, 71, 85]
    for count in ("rounds", "tokens", "admitted", "accepted", "labels"):
        assert sum(getattr(window, count) for window in windows) == getattr(total, count)
    assert sum(window.cost_ms for window in windows) == pytest.approx(total.cost_ms)
    mean = sum(window.log_loss * window.labels for window in windows) / total.labels
    assert mean == pytest.approx(total.log_loss)


def test_calibration_compares_predictions_with_the_labels_they_earned() -> None:
    rounds = rounds_of(
        Block("+-.", overlap=(0.75, 0.5, 0.9)), Block("++-", request=1, telling=False, overlap=(0.5, 0.5, 0.5))
    )
    total = replay(rounds, "oracle", synthetic.COSTS, 2).total
    assert total.admitted == 6
    assert (total.labels, total.predicted, total.observed) == (2, 0.625, 0.5)
    assert total.log_loss == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2)


def test_certainty_that_turns_out_wrong_is_scored_finitely() -> None:
    total = replay(rounds_of(Block("-", overlap=(1.0,))), "oracle", synthetic.COSTS, 1).total
    assert 15 < total.log_loss < 17


def test_without_a_label_nothing_is_scored() -> None:
    total = replay(rounds_of(Block("+-", overlap=(0.5, 0.5), telling=False)), "oracle", synthetic.COSTS, 1).total
    assert (total.labels, total.predicted, total.observed, total.log_loss) == (0, None, None, None)
    assert replay(rounds_of(Block("+-")), "fixed:2", synthetic.COSTS, 1).total.log_loss is None


def test_empty_seats_neither_emit_nor_cost() -> None:
    rounds = rounds_of(*(Block("+-", request=r, step=s) for r, n in enumerate((4, 1)) for s in range(n)))
    result = replay(rounds, "survival", synthetic.COSTS, 2)
    assert result.steps.num_requests.tolist() == [2, 1, 1, 1]
    tables = synthetic.COSTS.materialize(2, 6)
    np.testing.assert_allclose(result.steps.draft_ms, tables.draft[-1].numpy()[result.steps.num_requests])
    tokens = result.steps.num_requests + result.steps.admitted
    np.testing.assert_allclose(result.steps.verify_ms, tables.verify.numpy()[tokens])


def test_a_load_that_varies_is_played_as_given() -> None:
    rounds = synthetic_rounds()
    active = np.array([1, 8, 8, 2] * 10)
    result = replay(rounds, "estimator:paper", synthetic.COSTS, traffic=Traffic.build(rounds, 8, active=active))
    np.testing.assert_array_equal(result.steps.num_requests, active)


def test_a_comparison_measures_by_the_best_fixed_depth_and_the_bound_even_if_not_asked_for() -> None:
    rounds = synthetic_rounds()
    traffic = Traffic.build(rounds, 8)
    done = compare(rounds, synthetic.COSTS, traffic, ["threshold-trim:0.2", "fixed:0", "survival"])
    fixed = [replay(rounds, f"fixed:{k}", synthetic.COSTS, 8).tokens_per_second for k in range(5)]
    assert done.best_fixed.tokens_per_second == max(fixed) > fixed[0]
    values = done.to_dict()
    assert [row["policy"] for row in values["policies"]] == ["threshold-trim:0.2", "fixed:0", "survival"]
    assert values["policies"][1]["relative_to_best_fixed"] == pytest.approx(fixed[0] / max(fixed))
    assert values["policies"][2]["relative_to_clairvoyant"] < 1
    assert done.best is done.results[2]
    only_bounds = compare(rounds, synthetic.COSTS, traffic, ["clairvoyant", "oracle", "threshold-trim:0.2"])
    assert only_bounds.best is None
