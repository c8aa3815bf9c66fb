from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.lab.evaluate.traces import half_greedy, memory_trace, one_run, with_labels
from tests.lab.synthetic import run_info

from adaverify.errors import TraceError
from adaverify.lab.evaluate.features import chance
from adaverify.lab.evaluate.fit import LawFitter, cross_validated
from adaverify.lab.evaluate.metrics import log_loss
from adaverify.lab.evaluate.sample import Sample


def feature_of(sample: Sample) -> np.ndarray:
    return sample.drafts.logit_q_max.astype(np.float64)


@pytest.fixture(scope="module")
def trace():
    return one_run(num_steps=2000)


@pytest.mark.parametrize("shared", [True, False])
def test_a_known_law_comes_back(trace, shared):
    sample = Sample.of(trace)
    law = LawFitter(4, shared).fit(feature_of(sample), sample.depth, sample.label)
    np.testing.assert_allclose(law.slopes, 0.6, atol=0.04)
    np.testing.assert_allclose(law.intercepts, [0.3, 0.1, -0.1, -0.3], atol=0.08)
    assert (len(set(law.slopes)) == 1) == shared


def test_slopes_that_differ_are_told_apart():
    rng = np.random.default_rng(0)
    depth, f = rng.integers(0, 2, 40_000), rng.normal(0, 2, 40_000)
    label = rng.random(40_000) < chance(np.array([0.2, 1.0])[depth] * f + 0.5)
    np.testing.assert_allclose(LawFitter(2, shared=False).fit(f, depth, label).slopes, [0.2, 1.0], atol=0.05)


def test_predictions_are_near_the_best_there_are(trace):
    sample = Sample.of(trace)
    predicted = chance(cross_validated(sample, feature_of(sample)))
    best = log_loss(sample.drafts.overlap, sample.label)
    assert best - 1e-3 < log_loss(predicted, sample.label) < best + 1e-3


def test_a_request_is_predicted_without_its_own_labels(trace):
    sample = Sample.of(trace)
    feature = feature_of(sample)
    held_out = sample.block % 5 == 0
    flipped = with_labels(trace, np.flatnonzero(trace.drafts.label >= 0)[held_out], 0)
    before, after = (cross_validated(s, feature) for s in (sample, Sample.of(flipped)))
    # a fit starts from the one before it, so the same labels give the same law to its tolerance alone
    np.testing.assert_allclose(after[held_out], before[held_out], atol=1e-4)
    assert np.abs(after[~held_out] - before[~held_out]).mean() > 0.1


def test_every_pair_has_a_law_of_its_own():
    trace = memory_trace(
        (run_info(run="a", drafter="one"), {"slope": 0.2, "num_steps": 500}),
        (run_info(run="b", drafter="two"), {"slope": 1.2, "num_steps": 500, "seed": 1}),
    )
    sample = Sample.of(trace)
    predicted = chance(cross_validated(sample, feature_of(sample)))
    assert np.abs(predicted - sample.drafts.overlap).max() < 0.1


def test_greedy_and_sampled_drafts_are_predicted_by_laws_of_their_own():
    mixed = half_greedy(one_run(num_steps=1200))
    sample = Sample.of(mixed)
    predicted = cross_validated(sample, feature_of(sample))
    sampled = ~sample.drafts.is_greedy
    alone = Sample.of(replace(mixed, drafts=mixed.drafts.select(mixed.drafts.temperature > 0)))
    # other folds, so the laws are alike but not the same
    np.testing.assert_allclose(predicted[sampled], cross_validated(alone, feature_of(alone)), atol=0.2)
    assert chance(predicted[~sampled]).mean() == pytest.approx(sample.label[~sampled].mean(), abs=0.01)


def test_greedy_drafts_that_cannot_be_fitted_leave_the_sampled_ones_predicted():
    mixed = half_greedy(one_run(num_steps=200))
    greedy = (mixed.drafts.temperature == 0) & (mixed.drafts.label >= 0)
    sample = Sample.of(with_labels(mixed, greedy, 1))
    predicted = cross_validated(sample, feature_of(sample))
    np.testing.assert_array_equal(np.isnan(predicted), sample.drafts.is_greedy)


def test_a_fit_draws_no_more_labels_than_it_may(trace, monkeypatch):
    sample = Sample.of(trace)
    fitter = LawFitter(4, max_labels=500)
    rows = []
    design = fitter._design
    monkeypatch.setattr(fitter, "_design", lambda f, depth: rows.append(len(f)) or design(f, depth))
    fitter.fit(feature_of(sample), sample.depth, sample.label)
    assert rows == [500]


def test_labels_that_are_all_alike_fit_no_law():
    with pytest.raises(TraceError, match="3 labels, all alike"):
        LawFitter(2).fit(np.zeros(3), np.zeros(3, int), np.ones(3, bool))
    with pytest.raises(TraceError, match="0 labels"):
        LawFitter(2).fit(np.zeros(0), np.zeros(0, int), np.ones(0, bool))


def test_a_fold_that_cannot_be_predicted_leaves_none_predicted():
    trace = one_run(num_steps=200)
    sample = Sample.of(trace)
    # without the last fold all labels are alike
    others = np.flatnonzero(trace.drafts.label >= 0)[sample.block % 5 != 4]
    sample = Sample.of(with_labels(trace, others, 0))
    assert np.isnan(cross_validated(sample, feature_of(sample))).all()


def test_without_other_requests_or_a_feature_nothing_is_predicted():
    sample = Sample.of(one_run(num_steps=10, num_requests=1, steps_per_request=10))
    assert np.isnan(cross_validated(sample, feature_of(sample))).all()
    sample = Sample.of(one_run(num_steps=200))
    feature = feature_of(sample)
    feature[:50] = np.nan
    assert np.isnan(cross_validated(sample, feature)).tolist() == [True] * 50 + [False] * (len(sample) - 50)
