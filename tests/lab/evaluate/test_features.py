from __future__ import annotations

import numpy as np
import pytest
from tests.lab.evaluate.traces import one_run, with_drafts

from adaverify.lab.evaluate.features import chance, log_odds, log_odds_drawn, margin, minus_log_minus_log


def test_minus_log_minus_log_is_what_it_says():
    q = np.array([0.01, 0.3, 0.5, 0.9])
    np.testing.assert_allclose(minus_log_minus_log(log_odds(q)), -np.log(-np.log(q)), rtol=1e-9)


def test_it_stays_finite_and_rising_where_q_rounds_to_0_or_1():
    values = minus_log_minus_log(np.array([-40.0, -39.0, 0.0, 39.0, 40.0]))
    assert np.isfinite(values).all()
    assert (np.diff(values) > 0).all()
    assert values[-1] == pytest.approx(40)


def test_log_odds_of_0_and_1_are_clipped_to_what_float32_tells_apart():
    assert log_odds([0.0, 1.0]).tolist() == pytest.approx([-16.6355, 16.6355], abs=1e-3)
    assert chance(log_odds([0.25]))[0] == pytest.approx(0.25)


def test_a_drawn_token_that_is_the_likeliest_has_the_log_odds_of_q_max():
    trace = one_run(num_steps=1, num_requests=1)
    f = np.array([20.0, 12.0, -1.0, 1.0], np.float32)
    q_max = chance(f.astype(np.float64)).astype(np.float32)
    # drawn: the likeliest where q_max rounds to 1; the likeliest, an ulp off; another; nothing's chance
    q_sampled = np.array([1.0, np.nextafter(q_max[1], 0), 0.1, 0.0], np.float32)
    drafts = with_drafts(trace, logit_q_max=f, q_max=q_max, q_sampled=q_sampled).drafts
    np.testing.assert_allclose(log_odds_drawn(drafts), [20.0, 12.0, np.log(0.1 / 0.9), -16.6355], rtol=1e-4)


def test_the_margin_over_a_single_token_is_clamped():
    trace = one_run(num_steps=1, num_requests=1)
    drafts = with_drafts(trace, margin=np.array([np.inf, 2.0, 3.0, 50.0], np.float32)).drafts
    assert margin(drafts).tolist() == [40.0, 2.0, 3.0, 40.0]
