"""The acceptance law of a group of drafts, and what describes the group, over resampled requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaverify.errors import TraceError
from adaverify.lab.evaluate.bootstrap import MIN_BLOCKS, Estimate, Resamples, auc_of_histograms, interval, ratio
from adaverify.lab.evaluate.features import chance
from adaverify.lab.evaluate.fit import RIDGE, AcceptanceLaw, LawFitter
from adaverify.lab.evaluate.measure import RANK_BINS
from adaverify.lab.evaluate.metrics import auc
from adaverify.lab.evaluate.sample import Sample

MIN_LABELS = 30
OF_HALVES = ("intercept_of_half", "gap_of_other_half")
QUANTITIES = ("slope", "first_intercept", "entropy", "acceptance", "confidence_gap", "auc", *OF_HALVES)

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Quantity:
    """A number over a group of drafts, and over each resample of its requests.

    Attributes
    ----------
    value : float
    replicates : ndarray, shape [R]
    """

    value: float
    replicates: Floats


@dataclass(frozen=True)
class Group:
    """The acceptance law of one pair, on one dataset or on all.

    Attributes
    ----------
    drafter : str
    dataset : str or None
        None for all.
    sampling : str
        ``all``, ``greedy`` or ``sampled``: the requests in it.
    n : int
        Labels.
    labels_by_position : tuple of int
    intercepts : tuple of Estimate
        Undefined at positions with fewer than 30 labels.
    quantities : dict of str to Quantity
        ``slope`` and ``first_intercept``; over the labelled drafts at position 1, which no acceptance has selected:
        mean ``entropy`` in nats, ``acceptance`` and ``confidence_gap``, by how much acceptance exceeds the mean
        q_max; and the ``auc`` of q_max over all positions. ``intercept_of_half`` and ``gap_of_other_half`` are the
        first intercept and the gap of different requests: of the same labels the two agree by construction.
    enough : bool
        Whether there are requests enough for intervals.
    """

    drafter: str
    dataset: str | None
    sampling: str
    n: int
    labels_by_position: tuple[int, ...]
    intercepts: tuple[Estimate, ...]
    quantities: dict[str, Quantity]
    enough: bool

    def estimate(self, name: str) -> Estimate:
        """One of the quantities with its interval."""
        return interval(self.quantities[name].value, self.quantities[name].replicates, enough=self.enough)

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {
            "drafter": self.drafter,
            "dataset": self.dataset,
            "sampling": self.sampling,
            "n": self.n,
            "labels_by_position": list(self.labels_by_position),
            "intercepts": [vars(intercept) for intercept in self.intercepts],
            **{name: vars(self.estimate(name)) for name in QUANTITIES},
        }


class GroupMaker:
    """Fits the law of a group and takes its other quantities, on the same resamples for all groups."""

    def __init__(self, sample: Sample, resamples: Resamples, max_labels: int) -> None:
        self.sample, self.resamples, self.max_labels = sample, resamples, max_labels

    def make(self, pair: int, rows: Ints, dataset: str | None = None, sampling: str = "all") -> list[Group]:
        """One group, or none where no law fits."""
        if len(rows) > self.max_labels:
            rows = np.sort(np.random.default_rng(0).choice(rows, self.max_labels, replace=False))
        sample, K = self.sample, self.sample.pairs[pair].num_speculative_tokens
        feature = sample.drafts.logit_q_max[rows].astype(np.float64)
        depth, label, block = sample.depth[rows], sample.label[rows], sample.block[rows]
        counts = np.bincount(depth, minlength=K)
        if (fitted := self._fit(K, rows)) is None:
            return []
        law, slopes, intercepts = fitted
        enough = len(np.unique(block)) >= MIN_BLOCKS
        known = [
            interval(float(law.intercepts[k]), intercepts[:, k], enough=enough)
            if counts[k] >= MIN_LABELS
            else Estimate()
            for k in range(K)
        ]
        quantities = {
            "slope": Quantity(float(law.slopes[0]), slopes),
            "first_intercept": Quantity(float(law.intercepts[0]), intercepts[:, 0]),
            "auc": self._auc(feature, label, block),
            **self._of_first_position(rows[depth == 0]),
            **self._of_halves(K, rows),
        }
        name = sample.pairs[pair].label
        return [Group(name, dataset, sampling, len(rows), tuple(counts.tolist()), tuple(known), quantities, enough)]

    def _of_first_position(self, rows: Ints) -> dict[str, Quantity]:
        drafts, accepted = self.sample.drafts, self.sample.label[rows].astype(np.float64)
        columns = {
            "entropy": drafts.entropy[rows].astype(np.float64),
            "acceptance": accepted,
            "confidence_gap": accepted - chance(drafts.logit_q_max[rows].astype(np.float64)),
        }
        block, num_blocks = self.sample.block[rows], self.sample.num_blocks
        weight = self.resamples.sums(np.bincount(block, minlength=num_blocks))
        totals = {name: self.resamples.sums(np.bincount(block, column, num_blocks)) for name, column in columns.items()}
        return {name: Quantity(float(column.mean()), ratio(totals[name], weight)) for name, column in columns.items()}

    def _of_halves(self, K: int, rows: Ints) -> dict[str, Quantity]:
        """First intercept of every other block of requests, confidence gap of the others; nan where these are few."""
        unknown = Quantity(np.nan, np.full(len(self.resamples.weights), np.nan))
        blocks, number = np.unique(self.sample.block[rows], return_inverse=True)
        one, other = rows[number % 2 == 0], rows[number % 2 == 1]
        first = other[self.sample.depth[other] == 0]
        fitted = self._fit(K, one)
        if fitted is None or not len(first) or len(blocks) < 2 * MIN_BLOCKS:
            return dict.fromkeys(OF_HALVES, unknown)
        law, _, intercepts = fitted
        intercept = Quantity(float(law.intercepts[0]), intercepts[:, 0])
        return dict(zip(OF_HALVES, (intercept, self._of_first_position(first)["confidence_gap"]), strict=True))

    def _fit(self, K: int, rows: Ints) -> tuple[AcceptanceLaw, Floats, Floats] | None:
        """The law of some drafts, and slopes [R] and intercepts [R, K] over the resamples; None where none fits."""
        sample = self.sample
        feature = sample.drafts.logit_q_max[rows].astype(np.float64)
        depth, label, block = sample.depth[rows], sample.label[rows], sample.block[rows]
        if not (depth == 0).any():
            return None
        try:
            law = LawFitter(K, max_labels=self.max_labels).fit(feature, depth, label)
        except TraceError:
            return None
        return law, *bootstrap_law(law, feature, depth, label, block, sample.num_blocks, self.resamples)

    def _auc(self, feature: Floats, label: Bools, block: Ints) -> Quantity:
        value = auc(feature, label)
        assert value is not None, "a law was fitted, so both labels occur"
        edges = np.quantile(feature, np.linspace(0, 1, RANK_BINS + 1)[1:-1])
        place = (block.astype(np.intp) * 2 + label) * RANK_BINS + np.searchsorted(edges, feature)
        shape = (self.sample.num_blocks, 2, RANK_BINS)
        ranks = np.bincount(place, minlength=int(np.prod(shape))).reshape(shape)
        replicates = auc_of_histograms(self.resamples.sums(ranks[:, 1]), self.resamples.sums(ranks[:, 0]))
        binned = auc_of_histograms(ranks[:, 1].sum(axis=0), ranks[:, 0].sum(axis=0))
        return Quantity(value, replicates + (value - binned))


def bootstrap_law(
    law: AcceptanceLaw, feature: Floats, depth: Ints, label: Bools, block: Ints, num_blocks: int, resamples: Resamples
) -> tuple[Floats, Floats]:
    """Fit the law to every resample, by one Newton step from the law fitted to all labels.

    The step is the estimator's: per block and position the sums of ``v f^2``, ``v f``, ``v``, ``r f`` and ``r`` make
    an arrowhead system that is solved in closed form (``docs/algorithm.md``, The fit).

    Returns
    -------
    slopes : ndarray, shape [R]
    intercepts : ndarray, shape [R, K]
    """
    K = len(law.intercepts)
    p = chance(law.log_odds(feature, depth))
    variance, residual = p * (1 - p), label - p
    place = block.astype(np.intp) * K + depth
    a, b, c, g0, g1 = (
        resamples.sums(np.bincount(place, weights, num_blocks * K).reshape(num_blocks, K))
        for weights in (variance * feature**2, variance * feature, variance, residual * feature, residual)
    )
    # the gradient of the fit's own penalty, so that a replicate of everything stays where the fit is
    g1, pull = g1 - RIDGE * law.intercepts, RIDGE * law.slopes[0]
    diagonal = c + RIDGE
    slope_step = ((g0 - b * g1 / diagonal).sum(axis=1) - pull) / (RIDGE + (a - b * b / diagonal).sum(axis=1))
    steps = (g1 - b * slope_step[:, None]) / diagonal
    return law.slopes[0] + slope_step, law.intercepts + steps
