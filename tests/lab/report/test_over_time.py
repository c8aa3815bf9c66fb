from __future__ import annotations

from dataclasses import replace

import numpy as np
from tests.lab.report.traces import changed, with_runs

from adaverify.lab.report.figures import calibration_over_time, coefficients_over_refits
from adaverify.lab.report.figures.calibration import MOST_WINDOWS, Windows
from adaverify.lab.trace import Trace


def learning(trace: Trace, steps_per_refit: int = 20) -> Trace:
    """Coefficients that move by .01 a refit."""
    refits = trace.steps.step // steps_per_refit
    intercepts = refits[:, None] * 0.01 - np.arange(4) * 0.1
    return changed(trace, steps={"num_refits": refits, "slope": 0.5 + 0.01 * refits, "intercepts": intercepts})


def test_coefficients_have_one_point_a_refit(trace):
    picture = coefficients_over_refits(learning(trace))
    above, below = picture.figure.axes
    (slope,) = above.lines
    assert list(slope.get_xdata()) == list(range(15))
    np.testing.assert_allclose(slope.get_ydata(), 0.5 + 0.01 * np.arange(15), rtol=1e-6)
    for i, line in enumerate(below.lines):
        np.testing.assert_allclose(line.get_ydata(), 0.01 * np.arange(15) - 0.1 * i, atol=1e-6)
    assert len(below.lines) == 4
    assert picture.summary == (
        "14 refits in 1 run. At the end: slope 0.640; intercepts by position 0.140, 0.040, -0.060, -0.160."
    )


def test_coefficients_have_one_line_a_run(two_runs):
    picture = coefficients_over_refits(learning(two_runs))
    above, below = picture.figure.axes
    assert [len(line.get_xdata()) for line in above.lines] == [6, 3]
    assert len(below.lines) == 2 * 4
    assert picture.summary.startswith("7 refits in 2 runs. At the end: slope 0.520 to 0.550; ")


def test_very_many_refits_are_thinned_to_the_last(trace):
    above, _ = coefficients_over_refits(learning(trace, steps_per_refit=1)).figure.axes
    refits = above.lines[0].get_xdata()
    assert len(refits) == 200
    assert (refits[0], refits[-1]) == (0, 299)


def test_positions_beyond_the_drafters_own_are_not_drawn(two_drafters):
    refitted = changed(two_drafters, steps={"num_refits": two_drafters.steps.step // 10})
    _, below = coefficients_over_refits(refitted.of_runs([1])).figure.axes
    assert len(below.lines) == 2


def test_coefficients_that_were_never_refitted_are_words(trace):
    never = changed(trace, steps={"num_refits": [0]})
    picture = coefficients_over_refits(never)
    assert (picture.figure, picture.summary) == (None, "The estimator was never refitted in the steps recorded.")
    assert "own head" in coefficients_over_refits(with_runs(never, {"confidence": "head"})).summary
    assert coefficients_over_refits(changed(trace, steps={"slope": [np.nan]})).figure is None


def test_calibration_windows_hold_every_label_once_and_no_two_runs(two_runs):
    labelled = two_runs.labelled
    windows = Windows.of(labelled)
    assert windows.count.sum() == len(labelled)
    assert windows.run.tolist() == sorted(windows.run)
    for run in (0, 1):
        own = labelled.select(labelled.run == run)
        mine = windows.run == run
        assert windows.count[mine].sum() == len(own)
        for means, values in ((windows.predicted, own.prediction), (windows.observed, own.label)):
            np.testing.assert_allclose(np.average(means[mine], weights=windows.count[mine]), values.mean(), rtol=1e-5)
    assert 2 <= len(windows.count) <= MOST_WINDOWS + 2


def test_a_window_holds_the_drafts_of_its_steps(trace):
    labelled = trace.labelled
    windows = Windows.of(labelled)
    inside = (labelled.step >= windows.steps) & (labelled.step < 2 * windows.steps)
    assert windows.count[1] == inside.sum()
    assert windows.middle[1] == 1.5 * windows.steps
    np.testing.assert_allclose(windows.observed[1], labelled.label[inside].mean())


def test_windows_do_not_depend_on_the_order_of_the_drafts(two_runs):
    labelled = two_runs.labelled
    backwards = Windows.of(labelled.select(slice(None, None, -1)))
    assert backwards.count.tolist() == Windows.of(labelled).count.tolist()


def test_runs_that_start_late_have_the_same_windows(two_runs):
    labelled = two_runs.labelled
    late = Windows.of(replace(labelled, step=labelled.step + 7 + 1000 * labelled.run))
    assert late.count.tolist() == Windows.of(labelled).count.tolist()
    assert late.middle.tolist() == Windows.of(labelled).middle.tolist()


def test_few_labels_make_few_windows(trace):
    few = trace.labelled.select(slice(0, 250))
    assert len(Windows.of(few).count) <= 3


def test_calibration_draws_prediction_and_observation_with_a_gap_between_runs(two_runs):
    picture = calibration_over_time(two_runs)
    axes, strip = picture.figure.axes
    boundary, predicted, observed = axes.lines
    windows = Windows.of(two_runs.labelled)
    gap = np.flatnonzero(np.isnan(predicted.get_ydata()))
    assert gap.tolist() == [(windows.run == 0).sum()]
    np.testing.assert_allclose(np.delete(predicted.get_ydata(), gap), windows.predicted)
    np.testing.assert_allclose(np.delete(observed.get_ydata(), gap), windows.observed)
    assert 115 < boundary.get_xdata()[0] < 125
    assert [bar.get_height() for bar in strip.patches] == windows.count.tolist()


def test_calibration_says_by_how_much_the_prediction_is_off(trace):
    off = changed(trace, {"prediction": trace.drafts.label.clip(0, 1) * 0.5 + 0.5})
    mean = 0.5 - trace.labelled.label.mean() * 0.5
    assert f"Predicted less observed: {mean:+.3f} on average" in calibration_over_time(off).summary


def test_predictions_that_are_not_finite_make_no_window_nan(trace):
    prediction = np.where(trace.drafts.position == 1, np.nan, trace.drafts.prediction)
    _, strip = calibration_over_time(changed(trace, {"prediction": prediction})).figure.axes
    assert sum(bar.get_height() for bar in strip.patches) == (trace.labelled.position > 1).sum()


def test_calibration_without_labels_is_words(trace):
    picture = calibration_over_time(changed(trace, {"label": [-1]}))
    assert (picture.figure, picture.summary) == (None, "No draft of this drafter has a prediction and a label.")
