from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss as sklearn_log_loss
from sklearn.metrics import roc_auc_score

from adaverify.errors import TraceError
from adaverify.lab.evaluate.metrics import auc, ece, ece_of_calibrated, log_loss, reliability


def predictions(n: int = 5000, seed: int = 0, digits: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Chances, with ties where rounded to digits, and labels that disagree with them a little."""
    rng = np.random.default_rng(seed)
    p = 1 / (1 + np.exp(-rng.normal(1, 2, n)))
    label = rng.random(n) < p**1.3
    return (p if digits is None else p.round(digits)), label


@pytest.mark.parametrize("digits", [None, 2, 1])
def test_auc_and_log_loss_agree_with_scikit_learn(digits):
    p, label = predictions(digits=digits)
    assert auc(p, label) == pytest.approx(roc_auc_score(label, p), abs=1e-9)
    inside = p.clip(1e-7, 1 - 1e-7)
    assert log_loss(p, label) == pytest.approx(sklearn_log_loss(label, inside), abs=1e-9)


def test_float32_scores_are_told_apart_as_they_are():
    p, label = predictions()
    assert auc(p.astype(np.float32), label) == pytest.approx(roc_auc_score(label, p.astype(np.float32)), abs=1e-9)


def test_certain_and_wrong_costs_what_the_clip_says():
    assert log_loss([1.0, 0.0], [0, 1]) == pytest.approx(-np.log(1e-7))


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_ece_agrees_with_a_plain_loop(bins):
    p, label = predictions(digits=3)
    p[:2] = 0.0, 1.0
    edges = [b / bins for b in range(bins + 1)]
    expected = 0.0
    for b in range(bins):
        inside = [(x, y) for x, y in zip(p, label, strict=True) if edges[b] < x <= edges[b + 1] or (x == 0 and b == 0)]
        if inside:
            gap = sum(x for x, _ in inside) / len(inside) - sum(y for _, y in inside) / len(inside)
            expected += abs(gap) * len(inside) / len(p)
    assert ece(p, label, bins) == pytest.approx(expected, abs=1e-9)


def test_reliability_counts_every_draft_and_marks_empty_bins():
    curve = reliability([0.1, 0.15, 0.9], [0, 1, 1], bins=5)
    assert curve.count.tolist() == [2, 0, 0, 0, 1]
    assert curve.mean_prediction[0] == pytest.approx(0.125)
    assert curve.observed[[0, 4]].tolist() == [0.5, 1.0]
    assert np.isnan(curve.observed[1:4]).all()
    assert curve.to_dict()["observed"] == [0.5, None, None, None, 1.0]
    assert curve.ece == pytest.approx((2 * 0.375 + 0.1) / 3)


def test_ece_of_calibrated_is_what_drawn_labels_show():
    p, _ = predictions(2000)
    rng = np.random.default_rng(1)
    drawn = [ece(p, rng.random(len(p)) < p) for _ in range(400)]
    expected = np.quantile(drawn, 0.95)
    assert ece_of_calibrated(p, draws=2000) == pytest.approx(expected, rel=0.06)
    assert ece_of_calibrated(np.tile(p, 16)) == pytest.approx(ece_of_calibrated(p) / 4, rel=0.15)


def test_one_class_has_no_auc():
    assert auc([0.1, 0.2], [1, 1]) is None
    assert auc([0.1, 0.2], [0, 0]) is None


@pytest.mark.parametrize("metric", [auc, log_loss, ece, reliability])
def test_nothing_is_scored_without_labels(metric):
    with pytest.raises(TraceError, match="no label"):
        metric([], [])


def test_ece_of_calibrated_is_not_given_without_predictions():
    with pytest.raises(TraceError, match="no label"):
        ece_of_calibrated([])


@pytest.mark.parametrize("metric", [auc, log_loss, ece])
@pytest.mark.parametrize(
    ("score", "label", "message"),
    [
        ([0.5, float("nan")], [0, 1], "1 of 2 scores are not finite"),
        ([0.5, 0.5], [0, -1], "neither 0 nor 1"),
        ([0.5, 0.5, 0.5], [0, 1], "one score for each label"),
    ],
)
def test_what_cannot_be_scored_is_refused(metric, score, label, message):
    with pytest.raises(TraceError, match=message):
        metric(score, label)


@pytest.mark.parametrize("metric", [log_loss, ece])
def test_chances_lie_between_0_and_1(metric):
    with pytest.raises(TraceError, match="no chances"):
        metric([0.5, 1.5], [0, 1])
