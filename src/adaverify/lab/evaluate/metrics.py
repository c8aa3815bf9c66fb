"""How well scores tell accepted from rejected drafts, and how far predicted chances can be believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaverify.errors import TraceError

CLIP = 1e-7
DEFAULT_BINS = 15
FINE_BINS = 16

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def auc(score: ArrayLike, label: ArrayLike) -> float | None:
    """Area under the ROC curve: the chance that an accepted draft scores above a rejected one, ties counting half.

    Parameters
    ----------
    score : array_like, shape [N], floating
        Any scale, higher for what should be accepted.
    label : array_like, shape [N], 0 or 1

    Returns
    -------
    float or None
        Exact; None, for undefined, where all labels are alike.

    Raises
    ------
    TraceError
        There is no label, one is neither 0 nor 1, or a score is not finite.
    """
    values, accepted = _checked(score, label)
    order = np.argsort(values)
    return auc_of_sorted(values[order], accepted[order])


def auc_of_sorted(score: Floats, accepted: Bools) -> float | None:
    """:func:`auc` of scores in ascending order, shape [N], of one draft at least."""
    ends = np.flatnonzero(np.append(score[1:] != score[:-1], True))
    positives = np.append(0, accepted.cumsum()[ends])
    negatives = np.append(0, ends + 1) - positives
    if not positives[-1] or not negatives[-1]:
        return None
    # whole numbers: the area under the curve's straight pieces, times two, has no rounding
    area = (np.diff(positives) * (negatives[1:] + negatives[:-1])).sum()
    return float(area / (2 * positives[-1] * negatives[-1]))


def log_loss(p: ArrayLike, label: ArrayLike) -> float:
    """Mean negative log-likelihood of the labels, in nats, with ``p`` clipped to [1e-7, 1 - 1e-7].

    Parameters
    ----------
    p : array_like, shape [N], floating in [0, 1]
    label : array_like, shape [N], 0 or 1

    Raises
    ------
    TraceError
        There is no label, one is neither 0 nor 1, or a chance is not finite or outside [0, 1].
    """
    chances, accepted = _checked_chances(p, label)
    return float(losses(chances, accepted).mean())


def losses(p: Floats, accepted: Bools) -> Floats:
    """Negative log-likelihood of each label, shape [N]; see :func:`log_loss`."""
    clipped = np.clip(p, CLIP, 1 - CLIP)
    return -np.log(np.where(accepted, clipped, 1 - clipped))


@dataclass(frozen=True)
class Reliability:
    """Predicted against observed acceptance, in bins of equal width.

    Attributes
    ----------
    edges : ndarray, shape [bins + 1]
        Bin b holds edges[b] < p <= edges[b + 1]; the first holds p = 0 too.
    mean_prediction, observed : ndarray, shape [bins]
        Mean of the predictions and share of accepted drafts; nan where the bin is empty.
    count : ndarray of int64, shape [bins]
    """

    edges: Floats
    mean_prediction: Floats
    observed: Floats
    count: NDArray[np.int64]

    @property
    def ece(self) -> float:
        """Mean of ``|mean_prediction - observed|``, weighted by count."""
        filled = self.count > 0
        gaps = np.abs(self.mean_prediction[filled] - self.observed[filled])
        return float((gaps * self.count[filled]).sum() / self.count.sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; None where a bin is empty."""
        return {
            "edges": self.edges.tolist(),
            "mean_prediction": [None if math.isnan(value) else value for value in self.mean_prediction.tolist()],
            "observed": [None if math.isnan(value) else value for value in self.observed.tolist()],
            "count": self.count.tolist(),
        }


def reliability(p: ArrayLike, label: ArrayLike, bins: int = DEFAULT_BINS) -> Reliability:
    """Predicted against observed acceptance, in ``bins`` bins of equal width.

    Parameters
    ----------
    p : array_like, shape [N], floating in [0, 1]
    label : array_like, shape [N], 0 or 1
    bins : int

    Raises
    ------
    TraceError
        There is no label, one is neither 0 nor 1, or a chance is not finite or outside [0, 1].
    """
    chances, accepted = _checked_chances(p, label)
    which = bin_of(chances, bins)
    count = np.bincount(which, minlength=bins)
    safe = np.where(count, count, 1)
    filled = count > 0
    predicted = np.where(filled, np.bincount(which, chances, bins) / safe, np.nan)
    observed = np.where(filled, np.bincount(which, accepted, bins) / safe, np.nan)
    return Reliability(np.linspace(0, 1, bins + 1), predicted, observed, count)


def ece(p: ArrayLike, label: ArrayLike, bins: int = DEFAULT_BINS) -> float:
    """Expected calibration error: mean distance of predicted and observed acceptance over bins of equal width.

    Source: Guo et al., "On calibration of modern neural networks", ICML 2017. It is never negative and shrinks
    with the number of labels even when the predictor is perfect; see :func:`ece_of_calibrated`.

    Parameters
    ----------
    p : array_like, shape [N], floating in [0, 1]
    label : array_like, shape [N], 0 or 1
    bins : int

    Raises
    ------
    TraceError
        There is no label, one is neither 0 nor 1, or a chance is not finite or outside [0, 1].
    """
    return reliability(p, label, bins).ece


def ece_of_calibrated(
    p: ArrayLike, bins: int = DEFAULT_BINS, seed: int = 0, draws: int = 200, quantile: float = 0.95
) -> float:
    """ECE that a perfectly calibrated predictor with these predictions would show, by the noise of its labels alone.

    Labels are drawn from the predictions. Predictions that fall into one 16th of a bin share their mean, which
    changes the variance of a bin by less than 1 / (16 bins) of itself.

    Parameters
    ----------
    p : array_like, shape [N], floating in [0, 1]
    bins : int
    seed : int
    draws : int
        Sets of labels drawn.
    quantile : float
        Of the ECEs of the draws.

    Raises
    ------
    TraceError
        There is no prediction, or one is not finite or outside [0, 1].
    """
    chances, _ = _checked_chances(p, np.zeros(np.shape(p), bool))
    which = bin_of(chances, bins * FINE_BINS)
    count = np.bincount(which, minlength=bins * FINE_BINS)
    total = np.bincount(which, chances, bins * FINE_BINS).astype(np.float64)
    return calibrated_ece(count, total, bins, seed, draws, quantile)


def calibrated_ece(
    count: NDArray[np.integer[Any]], total: Floats, bins: int, seed: int = 0, draws: int = 200, quantile: float = 0.95
) -> float:
    """:func:`ece_of_calibrated` from the number and the sum of the predictions in each 16th of a bin."""
    mean = np.clip(total / np.where(count, count, 1), 0, 1)
    accepted = np.random.default_rng(seed).binomial(count, mean, (draws, len(count)))
    gaps = (accepted - total).reshape(draws, bins, FINE_BINS).sum(axis=-1)
    return float(np.quantile(np.abs(gaps).sum(axis=-1) / count.sum(), quantile))


def bin_of(p: Floats, bins: int) -> NDArray[np.intp]:
    """Index of the bin of each chance; see :class:`Reliability`."""
    return np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], p)


def _checked(score: ArrayLike, label: ArrayLike) -> tuple[Floats, Bools]:
    values, labels = np.asarray(score, dtype=np.float64), np.asarray(label)
    accepted = labels.astype(bool)
    if values.shape != accepted.shape or values.ndim != 1:
        raise TraceError(f"{values.shape} scores for {accepted.shape} labels; give one score for each label, in a row")
    if not len(values):
        raise TraceError("there is no label to score; record with --no-trim, or loosen the filters")
    if not ((labels == 0) | (labels == 1)).all():
        raise TraceError("a label is neither 0 nor 1; leave unobserved drafts out before scoring")
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise TraceError(f"{bad} of {len(values)} scores are not finite; leave those drafts out before scoring")
    return values, accepted


def _checked_chances(p: ArrayLike, label: ArrayLike) -> tuple[Floats, Bools]:
    chances, accepted = _checked(p, label)
    if chances.min() < 0 or chances.max() > 1:
        raise TraceError(
            f"predictions from {chances.min():.3g} to {chances.max():.3g} are no chances; give values within [0, 1]"
        )
    return chances, accepted
