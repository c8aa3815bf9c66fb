"""Repeated measurements in a few numbers: median and extent, and ratios of pairs with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Median and extent over passes.

    Attributes
    ----------
    median, low, high : float
    count : int
        Passes.
    """

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """Of the values that there are; None without one."""
        known = [value for value in values if value is not None]
        return cls(float(np.median(known)), min(known), max(known), len(known)) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of paired ratios, one a pass, with its 95% interval.

    The interval is Student's for the logarithms: with three passes it is wide, as it has to be.

    Attributes
    ----------
    value : float
    low, high : float, optional
        None with one pass only.
    count : int
        Pairs.
    """

    value: float
    low: float | None
    high: float | None
    count: int

    @classmethod
    def of(cls, values: Mapping[int, float], references: Mapping[int, float]) -> Ratio | None:
        """Ratios of the values to the references of the same pass; None where no pass has both."""
        passes = sorted(values.keys() & references.keys())
        if not passes:
            return None
        logs = np.log([values[number] / references[number] for number in passes])
        mean, count = float(logs.mean()), len(logs)
        if count == 1:
            return cls(float(np.exp(mean)), None, None, count)
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * float(logs.std(ddof=1)) / count**0.5
        return cls(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), count)

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"{self.value:.3f}{interval}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))
