from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from adaverify.lab.bench.statistics import Ratio, Spread


def test_ratios_are_of_pairs_and_their_interval_is_students():
    values, references = {0: 110.0, 1: 54.0, 2: 240.0, 4: 9.0}, {0: 100.0, 1: 50.0, 2: 200.0, 3: 7.0}
    ratio = Ratio.of(values, references)
    test = stats.ttest_1samp(np.log([1.1, 1.08, 1.2]), 0.0)
    interval = test.confidence_interval(0.95)
    assert ratio.count == 3
    assert ratio.value == pytest.approx((1.1 * 1.08 * 1.2) ** (1 / 3))
    assert (ratio.low, ratio.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))


def test_drift_that_falls_on_both_of_a_pair_cancels():
    arm = {number: 1.05 * drift for number, drift in enumerate((100, 60, 85))}
    other = dict(enumerate((100.0, 60.0, 85.0)))
    ratio = Ratio.of(arm, other)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.05, 1.05, 1.05))


def test_intervals_hold_the_truth_as_often_as_they_say():
    dice = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        ratio = Ratio.of(dict(enumerate(1.1 * np.exp(dice.normal(0, 0.05, 3)))), dict.fromkeys(range(3), 1.0))
        hits += ratio.low <= 1.1 <= ratio.high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_one_pair_has_no_interval_and_none_no_ratio():
    assert Ratio.of({0: 3.0}, {0: 2.0}) == Ratio(1.5, None, None, 1)
    assert str(Ratio.of({0: 3.0}, {0: 2.0})) == "1.500"
    assert Ratio.of({0: 3.0}, {1: 2.0}) is None


def test_spread_leaves_out_what_is_not_there():
    assert Spread.of([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3)
    assert Spread.of([None]) is None
