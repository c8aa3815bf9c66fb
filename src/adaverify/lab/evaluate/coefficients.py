"""Slope and intercepts of the acceptance law, by drafter and dataset, and what they go along with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.evaluate.bootstrap import Estimate, Resamples, interval, ratio
from adaverify.lab.evaluate.fit import MAX_FIT_LABELS
from adaverify.lab.evaluate.groups import Group, GroupMaker
from adaverify.lab.evaluate.measure import ALL_DRAFTERS
from adaverify.lab.evaluate.sample import Sample

BETWEEN_DRAFTERS = "between drafters"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Correlation:
    """Pearson's correlation of two quantities over groups.

    The interval is that of the requests: the datasets and drafters are taken as given.

    Attributes
    ----------
    drafter : str
        Whose datasets it goes over; ``all drafters``: over every dataset of each; ``between drafters``: over the
        laws of whole drafters.
    of, with_ : str
        Names of quantities.
    num_groups : int
    estimate : Estimate
        Undefined over fewer than three groups.
    """

    drafter: str
    of: str
    with_: str
    num_groups: int
    estimate: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {
            "drafter": self.drafter,
            "of": self.of,
            "with": self.with_,
            "num_groups": self.num_groups,
            **vars(self.estimate),
        }


class Coefficients:
    """Laws fitted offline to each drafter, to each of its datasets, and to its greedy and its sampled requests.

    Parameters
    ----------
    sample : Sample
    resamples : Resamples
    max_labels : int
        For one fit.

    Attributes
    ----------
    by_drafter, by_dataset, by_sampling : list of Group
        Without groups that no law fits: all labels alike, or none at position 1. ``by_sampling`` is empty for a
        drafter that served but one kind of request.
    """

    PAIRS = (
        ("slope", "entropy"),
        ("slope", "acceptance"),
        ("slope", "auc"),
        ("first_intercept", "entropy"),
        ("first_intercept", "acceptance"),
        ("first_intercept", "confidence_gap"),
    )

    def __init__(self, sample: Sample, resamples: Resamples, max_labels: int = MAX_FIT_LABELS) -> None:
        self.by_drafter: list[Group] = []
        self.by_dataset: list[Group] = []
        self.by_sampling: list[Group] = []
        maker = GroupMaker(sample, resamples, max_labels)
        for number in range(len(sample.pairs)):
            rows = np.flatnonzero(sample.pair == number)
            self.by_drafter += maker.make(number, rows)
            dataset = sample.drafts.dataset[rows]
            for index in np.unique(dataset):
                self.by_dataset += maker.make(number, rows[dataset == index], dataset=sample.datasets[index])
            greedy = sample.drafts.is_greedy[rows]
            if greedy.any() and not greedy.all():
                self.by_sampling += maker.make(number, rows[greedy], sampling="greedy")
                self.by_sampling += maker.make(number, rows[~greedy], sampling="sampled")
        self.drafters = [pair.label for pair in sample.pairs]

    @cached_property
    def correlations(self) -> list[Correlation]:
        """Over the datasets of each drafter, over all groups of all, and over the drafters."""
        found = []
        for of, with_ in self.PAIRS:
            for drafter in self.drafters:
                own = [group for group in self.by_dataset if group.drafter == drafter]
                found.append(Correlation(drafter, of, with_, len(own), correlate(own, of, with_)))
            if len(self.drafters) > 1:
                every = correlate(self.by_dataset, of, with_)
                found.append(Correlation(ALL_DRAFTERS, of, with_, len(self.by_dataset), every))
                between = correlate(self.by_drafter, of, with_)
                found.append(Correlation(BETWEEN_DRAFTERS, of, with_, len(self.by_drafter), between))
        return found

    def correlation(self, drafter: str, of: str, with_: str) -> Correlation:
        """The one of this name."""
        return next(c for c in self.correlations if (c.drafter, c.of, c.with_) == (drafter, of, with_))

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {
            "by_drafter": [group.to_dict() for group in self.by_drafter],
            "by_dataset": [group.to_dict() for group in self.by_dataset],
            "by_sampling": [group.to_dict() for group in self.by_sampling],
            "correlations": [correlation.to_dict() for correlation in self.correlations],
        }


def correlate(groups: Sequence[Group], of: str, with_: str) -> Estimate:
    """Correlation of two quantities over groups; undefined over fewer than three, or where one does not vary."""
    if len(groups) < 3:
        return Estimate()
    one, other = (np.array([group.quantities[name].value for group in groups]) for name in (of, with_))
    value = float(_pearson(one, other))
    ones, others = (np.stack([group.quantities[name].replicates for group in groups]) for name in (of, with_))
    return interval(value, _pearson(ones, others), enough=all(group.enough for group in groups), kind="percentile")


def _pearson(one: Floats, other: Floats) -> Floats:
    """Correlation along the first axis; nan where a side is constant."""
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    return ratio((one * other).sum(axis=0), np.sqrt((one**2).sum(axis=0) * (other**2).sum(axis=0)))
