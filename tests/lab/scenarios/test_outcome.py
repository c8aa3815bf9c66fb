"""How recovery and calibration are counted, on numbers written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify.lab.evaluate.metrics import bin_of
from adaverify.lab.scenarios import CATALOGUE, Course, Outcome
from adaverify.lab.scenarios.outcome import longest_low, refits_to_recover
from adaverify.lab.scenarios.watched import Calibration


def course(*shares: list[float], policy: str = "some") -> Course:
    tokens = 100 * np.array(shares)
    return Course(policy, tokens, np.full_like(tokens, 10.0), Calibration.empty(1))


def healthy(length: int, seeds: int = 1) -> Course:
    return course(*[[1.0] * length] * seeds)


@pytest.mark.parametrize(
    ("shares", "refits"),
    [
        ([1.0, 1.0, 1.0], 0),
        ([0.5, 0.97, 0.985, 1.0], 2),
        ([0.5, 0.9, 0.9], None),
        # one good interval among bad ones is no recovery
        ([0.5, 1.0, 0.5, 1.0, 0.5, 1.0], 5),
        # a dip that the rest makes up for is no relapse
        ([0.5, 0.99, 0.96, 1.0, 1.0], 1),
        ([1.1, 1.0, 1.02], 0),
    ],
)
def test_refits_to_recover(shares: list[float], refits: int | None) -> None:
    assert refits_to_recover(course(shares), healthy(len(shares))) == [refits]


def test_the_longest_stretch_below_95_percent() -> None:
    low = course([0.94, 1.0, 0.9, 0.9, 0.96, 0.9], [1.0] * 6, [0.9] * 6)
    assert longest_low(low, healthy(6, 3)) == [2, 0, 6]


def test_only_measured_intervals_count() -> None:
    scenario = CATALOGUE["all-accepted"]
    before, after = [0.1] * 8, [0.5, 0.99] + [1.0] * 9
    offline = course([1.0] * 19, policy="offline")
    some = course(before + after)
    outcome = Outcome(scenario, (0,), offline, offline, (some,))
    assert outcome.refits_to_recover(some) == [1]
    assert outcome.longest_low(some) == [1]
    assert outcome.shares(some).shape == (1, 11)
    assert some.relative_to(offline, outcome.measured) == pytest.approx((0.5 + 0.99 + 9) / 11)


def test_calibration_says_bias_and_ece_of_each_phase() -> None:
    empty = Calibration.empty(2)
    count, predicted, accepted = empty.count.copy(), empty.predicted.copy(), empty.accepted.copy()
    # 100 labels predicted at .9, of which 80 are accepted, and 100 at .3, of which 40 are
    for chance, outcomes in ((0.9, 80), (0.3, 40)):
        place = bin_of(np.array([chance]), 240)[0]
        count[1, place], predicted[1, place], accepted[1, place] = 100, 100 * chance, outcomes
    told = (Calibration(count, predicted, accepted) + empty).of_phase(1)
    assert told["labels"] == 200
    assert told["bias"] == pytest.approx((10 - 10) / 200)
    assert told["ece"] == pytest.approx(20 / 200)
    assert 0 < told["ece_of_calibrated"] < 0.1
    assert empty.of_phase(0) == {"labels": 0, "bias": None, "ece": None, "ece_of_calibrated": None}
