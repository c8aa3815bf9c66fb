from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from tests.lab.report.traces import changed, with_runs

from adaverify.lab.report.figures import acceptance_by_position, auc_by_position
from adaverify.lab.trace import Trace


def legend(picture):
    return [text.get_text() for text in picture.figure.legends[0].get_texts()]


def ticks(picture):
    return [label.get_text() for label in picture.figure.axes[0].get_xticklabels()]


def test_auc_of_each_score_at_each_position(trace):
    picture = auc_by_position(trace)
    coin, *curves = picture.figure.axes[0].lines
    drafts = trace.labelled
    assert list(coin.get_ydata()) == [0.5, 0.5]
    assert legend(picture) == ["as served (estimator)", "raw q_max", "low draft entropy"]
    for curve, score in zip(curves, (drafts.prediction, drafts.q_max, -drafts.entropy), strict=True):
        assert list(curve.get_xdata()) == [1, 2, 3, 4]
        for i, value in enumerate(curve.get_ydata(), start=1):
            rows = drafts.position == i
            assert value == pytest.approx(roc_auc_score(drafts.label[rows], score[rows]), abs=1e-9)


def test_auc_ticks_count_the_labels_of_a_position(trace):
    counts = np.bincount(trace.labelled.position)[1:]
    assert ticks(auc_by_position(trace)) == [
        f"{i}\n{count / 1000:.3g}k" if count >= 1000 else f"{i}\n{count}" for i, count in enumerate(counts, start=1)
    ]


def test_auc_has_a_gap_where_it_is_undefined(trace):
    label = np.where((trace.drafts.position == 2) & (trace.drafts.label == 0), 1, trace.drafts.label)
    picture = auc_by_position(changed(trace, {"label": label}))
    values = picture.figure.axes[0].lines[1].get_ydata()
    assert np.isnan(values).tolist() == [False, True, False, False]
    assert "undefined" in picture.summary


def test_auc_shows_a_head_that_was_recorded_but_did_not_serve(trace):
    with_head = changed(trace, {"head_logit": trace.drafts.logit_q_max})
    assert legend(auc_by_position(with_head))[-1] == "confidence head"
    served = legend(auc_by_position(with_runs(with_head, {"confidence": "head"})))
    assert served == ["as served (head)", "raw q_max", "low draft entropy"]


def test_auc_in_words_where_labels_are_missing_or_alike(trace):
    none, alike = (auc_by_position(changed(trace, {"label": [label]})) for label in (-1, 1))
    assert none.figure is alike.figure is None
    assert none.summary == "No draft of this drafter has a label."
    assert "AUC is undefined" in alike.summary


def test_acceptance_of_each_dataset_and_of_all(trace):
    picture = acceptance_by_position(trace)
    drafts = trace.labelled
    names = legend(picture)
    assert sorted(names[:-1]) == ["chat", "maths"]
    assert names[-1] == "all datasets"
    for name, curve in zip(names, picture.figure.axes[0].lines, strict=True):
        own = drafts if name == "all datasets" else drafts.select(drafts.dataset == trace.datasets.index(name))
        expected = [own.label[own.position == i].mean() for i in range(1, 5)]
        np.testing.assert_allclose(curve.get_ydata(), expected)
    shares = [drafts.label[drafts.position == i].mean() for i in range(1, 5)]
    assert picture.summary == f"Accepted by position over all datasets: {', '.join(f'{x:.3f}' for x in shares)}."


def test_acceptance_has_a_gap_where_nothing_was_reached(trace):
    deep = (trace.drafts.position == 4) & (trace.drafts.dataset == 0)
    picture = acceptance_by_position(changed(trace, {"label": np.where(deep, -1, trace.drafts.label)}))
    shares = picture.figure.axes[0].lines[legend(picture).index(trace.datasets[0])].get_ydata()
    assert np.isnan(shares).tolist() == [False, False, False, True]


def test_acceptance_shows_the_datasets_with_most_labels_and_says_how_many_there_are(trace):
    # dataset d gets about d shares of the drafts
    codes = np.repeat(np.arange(12), np.arange(12) + 1)
    many = changed(trace, {"dataset": codes[np.arange(len(trace.drafts)) * 31 % len(codes)]})
    names = tuple(f"set{i}" for i in range(12))
    picture = acceptance_by_position(Trace(many.runs, names, many.drafts, many.steps))
    assert sorted(legend(picture)[:-1]) == sorted(names[4:])
    assert "The 8 datasets with most labels are shown, of 12." in picture.summary


def test_acceptance_keeps_datasets_apart_whose_names_read_the_same(trace):
    picture = acceptance_by_position(Trace(trace.runs, ("a\x00", "a\x01"), trace.drafts, trace.steps))
    assert legend(picture) == ["a�", "a�", "all datasets"]


def test_one_dataset_has_one_line(trace):
    picture = acceptance_by_position(changed(trace, {"dataset": [1]}))
    assert legend(picture) == ["chat"]
    assert len(picture.figure.axes[0].lines) == 1


def test_acceptance_without_labels_is_words(trace):
    picture = acceptance_by_position(changed(trace, {"label": [-1]}))
    assert (picture.figure, picture.summary) == (None, "No draft of this drafter has a label.")
