"""What the scores are made of: transforms of the recorded features of a draft distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaverify.lab.trace import Drafts

MAX_LOG_ODDS = 40.0
_SMALLEST = 2.0**-24

Floats = NDArray[np.float64]


def log_odds(chance: ArrayLike) -> Floats:
    """``log(p / (1 - p))``, with p clipped to [2^-24, 1 - 2^-24], what float32 can tell from 0 and from 1."""
    p = np.clip(np.asarray(chance, dtype=np.float64), _SMALLEST, 1 - _SMALLEST)
    return np.log(p) - np.log1p(-p)


def chance(log_odds: Floats) -> Floats:
    """``1 / (1 + exp(-x))``."""
    from scipy.special import expit

    return np.asarray(expit(log_odds))


def minus_log_minus_log(log_odds: Floats) -> Floats:
    """``-log(-log q)`` from the log-odds of q: at +-40, where these are clamped, it is 40 and -3.7."""
    return -np.log(np.logaddexp(0.0, -log_odds))


def margin(drafts: Drafts) -> Floats:
    """Difference of the two largest log-probabilities, clamped to 40 as it is infinite over a single token."""
    return np.minimum(drafts.margin.astype(np.float64), MAX_LOG_ODDS)


def log_odds_drawn(drafts: Drafts) -> Floats:
    """Log-odds of ``q_sampled``; near 1 from the recorded log-odds of ``q_max``, which keep all their digits.

    A token with more than half of the mass, or with as much as the likeliest, *is* the likeliest.
    """
    likeliest = drafts.q_sampled >= np.minimum(drafts.q_max, 0.5)
    return np.where(likeliest, drafts.logit_q_max, log_odds(drafts.q_sampled))
