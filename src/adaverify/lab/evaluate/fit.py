"""Offline fits of the acceptance law by scikit-learn, and their predictions for drafts they have not seen."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaverify.errors import TraceError
from adaverify.lab.evaluate.sample import Sample

FOLDS = 5
MAX_FIT_LABELS = 300_000
RIDGE = 1e-3

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class AcceptanceLaw:
    """``P(accepted) = sigmoid(slope * feature + intercept)``, by position.

    Attributes
    ----------
    slopes, intercepts : ndarray, shape [K]
        All slopes are alike where they are shared. The intercept of a position without labels is 0.
    """

    slopes: Floats
    intercepts: Floats

    def log_odds(self, feature: Floats, depth: Ints) -> Floats:
        """Log-odds of acceptance of drafts with these features at these positions (from 0)."""
        return self.slopes[depth] * feature + self.intercepts[depth]


class LawFitter:
    """Maximum likelihood by scikit-learn, with the paper's ridge of 1e-3 on every coefficient against separation.

    A fit starts from the one before it, which changes its cost, not its result.

    Parameters
    ----------
    num_positions : int
        K.
    shared : bool
        One slope for all positions (K + 1 coefficients), or a slope each (2 K).
    max_labels : int
        Of more labels this many are drawn at random.
    seed : int
    """

    def __init__(
        self, num_positions: int, shared: bool = True, max_labels: int = MAX_FIT_LABELS, seed: int = 0
    ) -> None:
        from sklearn.linear_model import LogisticRegression

        self.num_positions = num_positions
        self.shared = shared
        self.max_labels = max_labels
        self._rng = np.random.default_rng(seed)
        self._model = LogisticRegression(
            C=1 / RIDGE, solver="newton-cholesky", fit_intercept=False, warm_start=True, max_iter=100
        )

    def fit(self, feature: Floats, depth: Ints, label: Bools) -> AcceptanceLaw:
        """Fit to labels, shape [N].

        Raises
        ------
        TraceError
            All labels are alike, or there is none.
        """
        if len(label) > self.max_labels:
            chosen = self._rng.choice(len(label), self.max_labels, replace=False)
            feature, depth, label = feature[chosen], depth[chosen], label[chosen]
        if not len(label) or label.all() or not label.any():
            raise TraceError(f"{len(label)} labels, all alike, fit no law; record more, or loosen the filters")
        coefficients = self._model.fit(self._design(feature, depth), label).coef_[0]
        slopes, intercepts = coefficients[: -self.num_positions], coefficients[-self.num_positions :]
        return AcceptanceLaw(np.broadcast_to(slopes, intercepts.shape), intercepts.copy())

    def _design(self, feature: Floats, depth: Ints) -> Floats:
        K = self.num_positions
        num_slopes = 1 if self.shared else K
        design = np.zeros((len(feature), num_slopes + K))
        rows = np.arange(len(feature))
        design[rows, 0 if self.shared else depth] = feature
        design[rows, num_slopes + depth] = 1.0
        return design


def cross_validated(
    sample: Sample, feature: Floats, shared: bool = True, max_labels: int = MAX_FIT_LABELS, seed: int = 0
) -> Floats:
    """Predict every draft by the law of its pair and kind of request, fitted to the other folds of requests.

    Greedy and sampled requests have laws of their own, as they have in :class:`~adaverify.policy.RobustEstimator`.

    Parameters
    ----------
    sample : Sample
    feature : ndarray, shape [N]
        nan where a draft has none: it is neither fitted nor predicted.
    shared : bool
    max_labels : int
        For one fit.
    seed : int

    Returns
    -------
    ndarray, shape [N]
        Log-odds; nan without a feature, and for a pair's greedy or sampled drafts where they are of one request or
        have all labels alike in some fit.
    """
    predicted = np.full(len(sample), np.nan)
    depth, label = sample.depth, sample.label
    for number, greedy in product(range(len(sample.pairs)), (False, True)):
        fitter = LawFitter(sample.pairs[number].num_speculative_tokens, shared, max_labels, seed)
        own = (sample.pair == number) & (sample.drafts.is_greedy == greedy)
        rows = np.flatnonzero(own & np.isfinite(feature))
        fold = _folds(sample.block[rows])
        for held_out in np.unique(fold):
            train, test = rows[fold != held_out], rows[fold == held_out]
            try:
                law = fitter.fit(feature[train], depth[train], label[train])
            except TraceError:
                predicted[rows] = np.nan
                break
            predicted[test] = law.log_odds(feature[test], depth[test])
    return predicted


def _folds(block: Ints) -> Ints:
    """Fold of each draft: its blocks are dealt out evenly, whichever they are."""
    _, number = np.unique(block, return_inverse=True)
    return number % FOLDS
