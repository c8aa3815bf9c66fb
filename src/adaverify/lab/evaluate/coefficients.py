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
from adaverify.lab.evaluate.groups import OF_HALVES, Group, GroupMaker
from adaverify.lab.evaluate.parts import ALL_DRAFTERS
from adaverify.lab.evaluate.permutation import luck
from adaverify.lab.evaluate.sample import Sample, one_of_each

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
    luck_above, luck_below : float or None
        How often groups paired at random correlate as much, or as little; see
        :func:`~adaverify.lab.evaluate.permutation.luck`.
    """

    drafter: str
    of: str
    with_: str
    num_groups: int
    estimate: Estimate
    luck_above: float | None = None
    luck_below: float | None = None

    @classmethod
    def over(cls, drafter: str, groups: Sequence[Group], of: str, with_: str) -> Correlation:
        """The correlation over these groups."""
        estimate = correlate(groups, of, with_)
        if estimate.value is None:
            return cls(drafter, of, with_, len(groups), estimate)
        one, other = (np.array([group.quantities[name].value for group in groups]) for name in (of, with_))
        return cls(drafter, of, with_, len(groups), estimate, *luck(one, other))

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {
            "drafter": self.drafter,
            "of": self.of,
            "with": self.with_,
            "num_groups": self.num_groups,
            "luck_above": self.luck_above,
            "luck_below": self.luck_below,
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
        drafter that served but one kind of request; where it served both, ``by_drafter`` and ``by_dataset`` are of
        the sampled ones, since the two have laws of their own.
    sampling : dict of str to str
        By pair, what ``by_drafter`` and ``by_dataset`` are of: ``sampled``, or ``all`` where there is one kind.
    drafters, distinct : list of str
        Labels of all pairs, and of one pair for each drafter with its target: the same under standard and under
        coupled verification is one drafter.
    """

    PAIRS = (
        ("slope", "entropy"),
        ("slope", "acceptance"),
        ("slope", "auc"),
        ("first_intercept", "entropy"),
        ("first_intercept", "acceptance"),
        OF_HALVES,
    )

    def __init__(self, sample: Sample, resamples: Resamples, max_labels: int = MAX_FIT_LABELS) -> None:
        self.by_drafter: list[Group] = []
        self.by_dataset: list[Group] = []
        self.by_sampling: list[Group] = []
        self.sampling: dict[str, str] = {}
        maker = GroupMaker(sample, resamples, max_labels)
        for number in range(len(sample.pairs)):
            rows, sampling = np.flatnonzero(sample.pair == number), "all"
            greedy = sample.drafts.is_greedy[rows]
            if greedy.any() and not greedy.all():
                self.by_sampling += maker.make(number, rows[greedy], sampling="greedy")
                rows, sampling = rows[~greedy], "sampled"
                self.by_sampling += maker.make(number, rows, sampling=sampling)
            self.sampling[sample.pairs[number].label] = sampling
            self.by_drafter += maker.make(number, rows, sampling=sampling)
            dataset = sample.drafts.dataset[rows]
            for index in np.unique(dataset):
                self.by_dataset += maker.make(number, rows[dataset == index], sample.datasets[index], sampling)
        self.drafters = [pair.label for pair in sample.pairs]
        self.distinct = one_of_each(sample.pairs)

    @cached_property
    def correlations(self) -> list[Correlation]:
        """Over the datasets of each drafter, over all groups of all, and over the drafters."""
        found = []
        groups, laws = (
            [g for g in fitted if g.drafter in self.distinct] for fitted in (self.by_dataset, self.by_drafter)
        )
        for of, with_ in self.PAIRS:
            for drafter in self.drafters:
                own = [group for group in self.by_dataset if group.drafter == drafter]
                found.append(Correlation.over(drafter, own, of, with_))
            if len(self.distinct) > 1:
                found.append(Correlation.over(ALL_DRAFTERS, groups, of, with_))
                found.append(Correlation.over(BETWEEN_DRAFTERS, laws, of, with_))
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
