"""AUC, log-loss and ECE of a score over every part of a sample, with intervals, in a few passes over its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.evaluate.bootstrap import MIN_BLOCKS, Estimate, Resamples, auc_of_histograms, interval, ratio
from adaverify.lab.evaluate.metrics import DEFAULT_BINS, FINE_BINS, auc_of_sorted, bin_of, calibrated_ece, losses
from adaverify.lab.evaluate.parts import Layout, Part
from adaverify.lab.evaluate.sample import Sample
from adaverify.lab.evaluate.scores import Score

RANK_BINS = 256
METRICS = ("auc", "log_loss", "ece")

Metric = Literal["auc", "log_loss", "ece"]
Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Measured:
    """What one score shows on one part.

    Attributes
    ----------
    n : int
        Labels.
    auc, log_loss, ece : Estimate
    ece_of_calibrated : float or None
        95% quantile of the ECE of a perfectly calibrated predictor with these predictions; not for one position.
    mean_prediction, observed : float
        Means of the predictions and of the labels.
    counts : ndarray, shape [G]
        Labels by block.
    replicates : dict of str to ndarray, shape [R]
        The metrics over the resampled requests.
    """

    n: int
    auc: Estimate
    log_loss: Estimate
    ece: Estimate
    ece_of_calibrated: float | None
    mean_prediction: float
    observed: float
    counts: Ints
    replicates: dict[str, Floats]

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {
            "n": self.n,
            **{name: vars(getattr(self, name)) for name in METRICS},
            "ece_of_calibrated": self.ece_of_calibrated,
            "mean_prediction": self.mean_prediction,
            "observed": self.observed,
        }

    @property
    def has_interval(self) -> bool:
        """Whether requests enough have labels."""
        return int((self.counts > 0).sum()) >= MIN_BLOCKS


def are_of_same_drafts(first: Measured, second: Measured) -> bool:
    """Whether two scores have values for equally many drafts of every block."""
    return np.array_equal(first.counts, second.counts)


def difference(metric: Metric, first: Measured | None, second: Measured | None) -> Estimate:
    """A metric of the first score minus that of the second, on the same resampled requests.

    Undefined where a score is missing or the two are not of the same drafts.
    """
    if first is None or second is None or not are_of_same_drafts(first, second):
        return Estimate()
    one, other = getattr(first, metric).value, getattr(second, metric).value
    value = None if one is None or other is None else one - other
    return interval(value, first.replicates[metric] - second.replicates[metric], enough=first.has_interval)


def measure(
    score: Score, sample: Sample, layout: Layout, resamples: Resamples, bins: int = DEFAULT_BINS
) -> dict[Part, Measured]:
    """Measure a score over every part in which it has a value.

    Point values are exact. For the intervals' AUC the scores are put into 256 bins of equally many drafts.
    """
    tally = Tally(score, sample, layout, bins)
    return {
        part: tally.measure(cells, resamples, calibrated=not part.is_one_position)
        for part, cells in layout.parts.items()
        if tally.count[cells].any()
    }


class Tally:
    """Sums of one score over its drafts, by cell and block.

    Parameters
    ----------
    score : Score
    sample : Sample
    layout : Layout
    bins : int
        Of the ECE.
    """

    def __init__(self, score: Score, sample: Sample, layout: Layout, bins: int) -> None:
        rows = np.isfinite(score.values)
        everything = bool(rows.all())

        def own(column: NDArray[Any]) -> NDArray[Any]:
            return column if everything else column[rows]

        values, chances = own(score.values), own(score.chances)
        cell, block, label = own(layout.cell).astype(np.intp), own(sample.block), own(sample.label)
        self.bins = bins
        self._shape = (layout.num_cells, sample.num_blocks)
        order = np.argsort(values)
        self._sorted = values[order], label[order], cell[order]
        place = cell * sample.num_blocks + block
        self.count = self._sum(place)
        self.loss = self._sum(place, losses(chances, label))
        ranks = self._sum((place * 2 + label) * RANK_BINS + self._rank_bins(order), tail=(2, RANK_BINS))
        self.ranks = ranks.reshape(layout.num_cells, -1).astype(np.float32)
        fine = bin_of(chances, bins * FINE_BINS)
        binned = place * bins + fine // FINE_BINS
        self.predicted = self._sum(binned, chances, tail=(bins,))
        self.accepted = self._sum(binned, label, tail=(bins,))
        fine += cell * (bins * FINE_BINS)
        self.fine_count, self.fine_sum = (
            np.bincount(fine, weights, layout.num_cells * bins * FINE_BINS).reshape(layout.num_cells, -1)
            for weights in (None, chances)
        )

    def measure(self, cells: Bools, resamples: Resamples, calibrated: bool = True) -> Measured:
        """The metrics over some cells, shape [cells]; with the ECE of a calibrated predictor, which takes draws."""
        count, loss = self.count[cells].sum(axis=0), self.loss[cells].sum(axis=0)
        predicted, accepted = self.predicted[cells].sum(axis=0), self.accepted[cells].sum(axis=0)
        ranks = (cells.astype(np.float32) @ self.ranks).reshape(-1, 2, RANK_BINS)
        n = int(count.sum())
        gap = predicted - accepted
        weight = resamples.sums(count)
        replicates = {
            "auc": auc_of_histograms(resamples.sums(ranks[:, 1]), resamples.sums(ranks[:, 0])),
            "log_loss": ratio(resamples.sums(loss), weight),
            "ece": ratio(np.abs(resamples.sums(gap)).sum(axis=-1), weight),
        }
        auc = self._auc(cells)
        if auc is not None:
            # what binning the scores shifts the AUC by
            replicates["auc"] += auc - auc_of_histograms(ranks[:, 1].sum(axis=0), ranks[:, 0].sum(axis=0))
        enough = int((count > 0).sum()) >= MIN_BLOCKS
        return Measured(
            n=n,
            auc=interval(auc, replicates["auc"], (0, 1), enough),
            log_loss=interval(float(loss.sum() / n), replicates["log_loss"], (0, np.inf), enough),
            ece=interval(float(np.abs(gap.sum(axis=0)).sum() / n), replicates["ece"], (0, 1), enough),
            ece_of_calibrated=self._calibrated_ece(cells) if calibrated else None,
            mean_prediction=float(predicted.sum() / n),
            observed=float(accepted.sum() / n),
            counts=count,
            replicates=replicates,
        )

    def _calibrated_ece(self, cells: Bools) -> float:
        return calibrated_ece(self.fine_count[cells].sum(axis=0), self.fine_sum[cells].sum(axis=0), self.bins)

    def _auc(self, cells: Bools) -> float | None:
        values, label, cell = self._sorted
        inside = cells[cell]
        return auc_of_sorted(values[inside], label[inside])

    def _rank_bins(self, order: Ints) -> Ints:
        """Bin of each draft by the rank of its score, shape [N]; equal scores share a bin."""
        values = self._sorted[0]
        is_first = np.append(True, values[1:] != values[:-1])
        first = np.maximum.accumulate(np.where(is_first, np.arange(len(values)), 0))
        bins = np.empty(len(order), np.int16)
        bins[order] = first * RANK_BINS // len(order)
        return bins

    def _sum(self, index: Ints, weights: NDArray[Any] | None = None, tail: Sequence[int] = ()) -> NDArray[Any]:
        """Sums of weights, or counts, by an index into [cells, G, *tail]."""
        shape = (*self._shape, *tail)
        return np.bincount(index, weights, int(np.prod(shape))).reshape(shape)
