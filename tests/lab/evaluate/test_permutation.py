from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from adaverify.lab.evaluate.permutation import luck


def test_three_groups_in_line_come_about_once_in_six_ways():
    up = np.array([1.0, 2.0, 4.0])
    assert luck(up, 3 * up) == (1 / 6, 1.0)
    assert luck(up, -up) == (1.0, 1 / 6)


def test_few_groups_are_paired_in_every_way():
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=6), rng.normal(size=6)
    observed = np.corrcoef(one, other)[0, 1]
    every = np.array([np.corrcoef(one, other[list(order)])[0, 1] for order in permutations(range(6))])
    assert luck(one, other) == pytest.approx(((every >= observed - 1e-9).mean(), (every <= observed + 1e-9).mean()))


def test_many_groups_are_paired_at_random_and_never_without_luck():
    rng = np.random.default_rng(0)
    one = rng.normal(size=12)
    above, below = luck(one, one)
    assert (above, below) == (1 / 10_001, 1.0)
    unrelated = [luck(one, rng.normal(size=12))[0] for _ in range(20)]
    assert 0.2 < np.mean(unrelated) < 0.8


def test_what_does_not_vary_correlates_by_luck():
    assert luck(np.ones(4), np.arange(4.0)) == (1.0, 1.0)
