from __future__ import annotations

import numpy as np
import pytest
from tests.lab.report.traces import changed

from adaverify.lab.evaluate.metrics import reliability
from adaverify.lab.report.figures import reliability_diagram


def test_draws_observed_over_predicted_as_served_and_of_raw_q_max(trace):
    axes, strip = reliability_diagram(trace).figure.axes
    diagonal, served, raw = axes.lines
    labelled = trace.labelled
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    for line, values in ((served, labelled.prediction), (raw, labelled.q_max)):
        expected = reliability(values, labelled.label)
        filled = expected.count > 0
        np.testing.assert_allclose(line.get_xdata(), expected.mean_prediction[filled])
        np.testing.assert_allclose(line.get_ydata(), expected.observed[filled])
    assert [patch.get_data().values.sum() for patch in strip.patches] == [len(labelled)] * 2


def test_says_the_errors_in_the_legend_and_in_words(trace):
    picture = reliability_diagram(trace)
    served, raw = (reliability(values, trace.labelled.label).ece for values in (trace.labelled.prediction,
                                                                                trace.labelled.q_max))  # fmt: skip
    labels = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert labels == [f"as served, ECE {served:.4f}", f"raw q_max, ECE {raw:.4f}"]
    assert f"As served: ECE {served:.4f} (noise alone: up to 0.0" in picture.summary
    assert f"{len(trace.labelled):,} labelled drafts" in picture.summary
    assert "tiny-draft (eagle3) for tiny" in picture.title


def test_larger_bins_have_larger_markers(trace):
    served = reliability_diagram(trace).figure.axes[0].collections[0]
    count = reliability(trace.labelled.prediction, trace.labelled.label).count
    assert (np.argsort(served.get_sizes()) == np.argsort(count[count > 0])).all()


def test_predictions_that_are_not_finite_are_left_out_and_not_counted(trace):
    prediction = np.where(np.arange(len(trace.drafts)) % 2 == 0, np.nan, trace.drafts.prediction)
    picture = reliability_diagram(changed(trace, {"prediction": prediction}))
    known = int(np.isfinite(prediction[trace.drafts.is_labelled]).sum())
    assert f"{known:,} labelled drafts. Raw" in picture.summary
    assert np.isfinite(picture.figure.axes[0].lines[1].get_ydata()).all()


@pytest.mark.parametrize(
    "columns", [{"label": [-1]}, {"telling": [False]}, {"prediction": [np.nan], "q_max": [np.nan]}], ids=str
)
def test_without_labels_or_predictions_there_are_words(trace, columns):
    picture = reliability_diagram(changed(trace, columns))
    assert picture.figure is None
    assert picture.summary == "No draft of this drafter has a prediction and a label."


def test_empty_bins_are_no_points(trace):
    two = changed(trace, {"prediction": np.where(trace.drafts.position == 1, 0.9, 0.1)})
    served = reliability_diagram(two).figure.axes[0].lines[1]
    np.testing.assert_allclose(served.get_xdata(), [0.1, 0.9], rtol=1e-6)
