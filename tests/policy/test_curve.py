"""The curve that mends the shape of predictions."""

from __future__ import annotations

import pytest
import torch

from adaverify.policy.robust.curve import KNOTS, MAX_CORRECTION, CalibrationCurve

LOGITS = torch.linspace(-6, 6, 4001, dtype=torch.float64)


def learn(curve, truth, steps=400, seed=0, rows=64):
    """Labels of predictions spread over four nats, accepted with the chance that ``truth`` makes of their log-odds."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        scores = 8 * torch.rand(rows, 2, generator=generator) - 4
        p = curve.correct(torch.sigmoid(scores))
        accepted = (torch.rand(rows, 2, generator=generator) < torch.sigmoid(truth(scores))).double()
        curve.observe(p, torch.ones(rows, 2, dtype=torch.bool), accepted - p)


def s_shape(scores):
    """Less sure at both ends than predicted."""
    return scores - 0.18 * torch.tanh(scores)


def worst(curve, truth, within=3.0):
    scores = LOGITS[LOGITS.abs() < within]
    return float((curve.correct(torch.sigmoid(scores)) - torch.sigmoid(truth(scores))).abs().max())


def test_it_learns_a_shape_that_no_slope_has():
    curve = CalibrationCurve(20000.0, "cpu")
    assert worst(curve, s_shape) > 0.025
    learn(curve, s_shape)
    assert worst(curve, s_shape) < 0.012


def test_it_leaves_alone_what_is_right():
    curve = CalibrationCurve(8000.0, "cpu")
    learn(curve, lambda scores: scores)
    assert curve.corrections.abs().max() < 0.06


def test_it_forgets():
    curve = CalibrationCurve(2000.0, "cpu")
    learn(curve, s_shape)
    learn(curve, lambda scores: scores, steps=200, seed=1)
    assert worst(curve, lambda scores: scores) < 0.02


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_it_stays_bounded_and_keeps_the_order(outcome):
    curve = CalibrationCurve(8000.0, "cpu")
    labelled = torch.ones(64, 4, dtype=torch.bool)
    for step in range(300):
        p = curve.correct(torch.sigmoid(torch.linspace(-4, 4, 256).view(64, 4)))
        curve.observe(p, labelled, outcome * (step % 2) - p if step < 150 else outcome - p)
    assert curve.corrections.abs().max() == pytest.approx(MAX_CORRECTION, abs=0.02)
    corrected = curve.correct(torch.sigmoid(LOGITS))
    assert (corrected.diff() > 0).all()


def test_what_has_no_label_changes_nothing():
    curve = CalibrationCurve(8000.0, "cpu")
    p = torch.tensor([[0.3, torch.nan], [0.9, 0.2]])
    labelled = torch.tensor([[True, False], [False, False]])
    curve.observe(p, labelled, torch.tensor([[0.7, torch.nan], [torch.inf, -0.2]]))
    alone = CalibrationCurve(8000.0, "cpu")
    alone.observe(p[:1, :1], labelled[:1, :1], torch.tensor([[0.7]]))
    assert torch.equal(curve.corrections, alone.corrections)
    assert curve.corrections.isfinite().all()
    # between -1 and 0, nearer to -1
    low, high = curve.corrections[2], curve.corrections[3]
    assert low > high > 0
    others = [i for i in range(len(KNOTS)) if i not in (2, 3)]
    assert torch.equal(curve.corrections[others], torch.zeros(5, dtype=torch.float64))


def test_a_corrected_prediction_teaches_the_knots_it_was_made_from():
    curve = CalibrationCurve(8000.0, "cpu")
    curve.corrections += torch.tensor([0.1, -0.2, 0.2, 0.1, -0.1, 0.2, -0.2])
    scores = torch.linspace(-4, 4, 100, dtype=torch.float64)
    corrected = torch.logit(curve.correct(torch.sigmoid(scores)))
    of_corrected = curve._weights(corrected, curve._knots + curve.corrections)
    torch.testing.assert_close(of_corrected, curve._weights(scores, curve._knots))


def test_what_is_not_finite_stays_so():
    curve = CalibrationCurve(8000.0, "cpu")
    corrected = curve.correct(torch.tensor([torch.nan, 0.0, 1.0, 0.5]))
    assert corrected[0].isnan()
    assert corrected[1] < 1e-5
    assert corrected[2] > 1 - 1e-5
    assert corrected[3] == 0.5
