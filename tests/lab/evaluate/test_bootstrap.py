from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.lab.evaluate.traces import one_run, with_drafts

from adaverify.lab.evaluate.bootstrap import Estimate, Resamples, auc_of_histograms, interval
from adaverify.lab.evaluate.features import chance
from adaverify.lab.evaluate.measure import Measured, Tally, difference
from adaverify.lab.evaluate.metrics import DEFAULT_BINS, auc, log_loss
from adaverify.lab.evaluate.parts import Layout, Part
from adaverify.lab.evaluate.sample import Sample
from adaverify.lab.evaluate.scores import Score


def correlated_sample(seed: int, num_requests: int = 120, per_request: int = 8, spread: float = 1.0) -> Sample:
    """Drafts at position 1 whose feature and acceptance share an offset within each request."""
    rng = np.random.default_rng(seed)
    trace = one_run(num_steps=per_request, num_requests=num_requests, steps_per_request=per_request)
    trace = replace(trace, drafts=trace.drafts.select(trace.drafts.position == 1))
    offset = rng.normal(0, spread, num_requests)[trace.drafts.request]
    f = (0.5 + offset + rng.normal(0, 1.5, len(offset))).astype(np.float32)
    label = rng.random(len(offset)) < chance(f.astype(np.float64) + offset)
    return Sample.of(with_drafts(trace, logit_q_max=f, label=label.astype(np.int8)))


def measured(sample: Sample, values: np.ndarray | None = None, replicates: int = 400) -> Measured:
    values = sample.drafts.logit_q_max.astype(np.float64) if values is None else values
    score = Score("score", True, "as it is", values)
    layout = Layout(sample)
    tally = Tally(score, sample, layout, DEFAULT_BINS)
    return tally.measure(layout.parts[Part("tiny-draft")], Resamples.draw(sample.num_blocks, replicates))


def test_intervals_cover_the_known_values():
    everyone = correlated_sample(1000, num_requests=30_000)
    p = chance(everyone.drafts.logit_q_max.astype(np.float64))
    truth = {"auc": auc(p, everyone.label), "log_loss": log_loss(p, everyone.label)}
    found = [measured(correlated_sample(seed), replicates=300) for seed in range(300)]
    for name, value in truth.items():
        estimates = [getattr(m, name) for m in found]
        covered = np.mean([e.low <= value <= e.high for e in estimates])
        assert 0.90 <= covered <= 0.985, name


def test_correlated_drafts_widen_the_interval():
    sample = correlated_sample(0, spread=2.0)
    draftwise = replace(sample, block=np.random.default_rng(0).permutation(len(sample)) % 120)
    by_request, by_draft = measured(sample).log_loss, measured(draftwise).log_loss
    assert by_request.high - by_request.low > 1.4 * (by_draft.high - by_draft.low)


def test_a_difference_is_taken_on_the_same_resamples():
    sample = correlated_sample(0)
    values = sample.drafts.logit_q_max.astype(np.float64)
    better, worse = measured(sample), measured(sample, values + np.random.default_rng(1).normal(0, 0.8, len(values)))
    found = difference("auc", better, worse)
    assert found.value == pytest.approx(better.auc.value - worse.auc.value)
    assert found.high - found.low < 0.5 * (better.auc.high - better.auc.low)
    assert found.low > 0


def test_scores_of_different_drafts_have_no_difference():
    sample = correlated_sample(0)
    values = sample.drafts.logit_q_max.astype(np.float64)
    part = np.where(np.arange(len(values)) < 500, values, np.nan)
    assert difference("auc", measured(sample), measured(sample, part)) == Estimate()
    assert difference("auc", measured(sample), None) == Estimate()


def test_few_requests_give_a_value_without_an_interval():
    found = measured(correlated_sample(0, num_requests=9)).auc
    assert found.value is not None
    assert (found.low, found.high) == (None, None)
    assert measured(correlated_sample(0, num_requests=10)).auc.low is not None


def test_ece_of_a_calibrated_score_has_an_interval_down_to_0():
    sample = correlated_sample(0, spread=0.0)
    found = measured(sample)
    assert found.ece.low < 0.01
    assert 0.3 * found.ece_of_calibrated < found.ece.value < 1.3 * found.ece_of_calibrated


def test_replicates_draw_as_many_blocks_as_there_are():
    weights = Resamples.draw(50, 300, seed=1).weights
    assert weights.shape == (300, 50)
    assert (weights.sum(axis=1) == 50).all()
    assert weights.var() == pytest.approx(0.98, rel=0.05)
    sums = Resamples.draw(50, 300, seed=1).sums(np.arange(100).reshape(50, 2))
    np.testing.assert_allclose(sums, weights @ np.arange(100).reshape(50, 2))


def test_histograms_give_the_auc_with_ties():
    rng = np.random.default_rng(0)
    score, label = rng.integers(0, 6, 500), rng.random(500) < 0.4
    counts = [np.bincount(score[label == kind], minlength=6) for kind in (True, False)]
    assert auc_of_histograms(*counts) == pytest.approx(auc(score, label))
    assert np.isnan(auc_of_histograms(np.array([0, 0]), np.array([1, 2])))


@pytest.mark.parametrize(
    ("kind", "low", "high"), [("basic", -0.125, 2.0), ("percentile", 2.0, 4.125), ("widest", -0.125, 4.125)]
)
def test_kinds_of_intervals(kind, low, high):
    # quantiles 2 and 4.125 of replicates that lie above the value, 2
    found = interval(2.0, np.linspace(2.0 - 2.125 / 38, 4.125 + 2.125 / 38, 1001), kind=kind)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, low, high))


def test_an_interval_ends_at_its_bounds_and_needs_a_value():
    replicates = np.linspace(0, 1, 101)
    assert interval(0.9, replicates, (0, 1)).high == 1
    assert interval(None, replicates) == Estimate()
    assert interval(float("nan"), replicates) == Estimate()
    assert interval(0.5, np.where(replicates < 0.2, np.nan, replicates)) == Estimate(0.5)
