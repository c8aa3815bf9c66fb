"""Follows what something costs from one measurement to the next: a Kalman filter that outliers cannot move."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# relative standard deviation of a single measurement
NOISE = 0.1
# how much the machine's speed, and with it every coefficient alike, may wander from one step to the next
SPEED_DRIFT = 0.05
# the same for a change of speed that is believed
SPEED_JUMP = 1.0
# a coefficient that had no measurement for so many steps is as uncertain as at the start
HORIZON = 2000
# more than so many times off, above or below, is suspect
GATE = 1.6
# so many suspects in a row, all on one side, are no accident
PATIENCE = 3
# no single measurement says more than this, and no coefficient leaves these bounds
MAX_RATIO = 1e3


@dataclass
class Suspects:
    """Measurements in a row that were far off, all on one side."""

    ratios: list[float] = field(default_factory=list)

    def add(self, ratio: float) -> float | None:
        """One more, as measured / predicted; the median of the run once it is long enough to be believed."""
        if self.ratios and (self.ratios[-1] > 1) != (ratio > 1):
            self.ratios.clear()
        self.ratios.append(ratio)
        return median(self.ratios) if len(self.ratios) >= PATIENCE else None

    def clear(self) -> None:
        """A measurement was as expected."""
        self.ratios.clear()


class CostFilter:
    """Tracks the coefficients of a cost ``features . coefficients``.

    Every measurement is one step of a Kalman filter [1]_ on the *relative* error, since what disturbs a measurement
    scales with it. Between two measurements all coefficients may have drifted by a common factor (the machine got
    slower), quickly, and each on its own, slowly. What was never measured moves with what was, as far as the prior
    covariance ties them together.

    A measurement more than ``GATE`` times off moves nothing, unless ``PATIENCE`` in a row are off on the same side:
    of any kind (then the speed has changed, and all is as uncertain again as at the start) or of this kind (then it is
    priced wrong). So one measurement moves the cost of its own features by less than 60%.

    Parameters
    ----------
    start : ndarray [F], float64
        Coefficients before the first measurement.
    covariance : ndarray [F, F], float64
        How uncertain they are, and what belongs together.
    lowest : ndarray [F], float64
        Bounds from below; with features that are not negative they keep costs monotone and positive.
    num_kinds : int
        Kinds of measurements that can be off apart from each other.

    Attributes
    ----------
    coefficients : ndarray [F], float64

    References
    ----------
    .. [1] R. E. Kalman, "A new approach to linear filtering and prediction problems", 1960.
    """

    def __init__(self, start: Floats, covariance: Floats, lowest: Floats, num_kinds: int) -> None:
        self.coefficients = start.copy()
        self._lowest = lowest
        self._covariance = covariance.copy()
        self._prior = covariance
        self._start_sum = float(start.sum())
        self._any = Suspects()
        self._kinds = [Suspects() for _ in range(num_kinds)]

    def predict(self, features: Floats) -> float:
        """Cost of something with these features [F]."""
        return float(features @ self.coefficients)

    def observe(self, features: Floats, cost: float, predicted: float, kind: int) -> None:
        """Learn from a measured cost; one that is not finite and positive says nothing.

        Parameters
        ----------
        features : ndarray [F], float64
            Not negative, not all 0.
        cost : float
        predicted : float
            What :meth:`predict` gives for the features.
        kind : int
            From 0.
        """
        if not (math.isfinite(cost) and cost > 0):
            return
        ratio = self._believe(min(max(cost / predicted, 1 / MAX_RATIO), MAX_RATIO), self._kinds[kind])
        self._forget()
        if ratio is not None:
            self._correct(features / predicted, ratio - 1)

    def _believe(self, ratio: float, same_kind: Suspects) -> float | None:
        """What to learn from, as measured / predicted: the ratio, the median of a run of suspects, or nothing."""
        if 1 / GATE <= ratio <= GATE:
            self._any.clear()
            same_kind.clear()
            return ratio
        again, lasting = same_kind.add(ratio), self._any.add(ratio)
        if lasting is not None:
            self._covariance += _outer(SPEED_JUMP**2 * self.coefficients, self.coefficients)
            self._covariance += self._scale**2 * self._prior
        if lasting is not None or again is not None:
            self._any.clear()
            same_kind.clear()
        return again if lasting is None else lasting

    def _forget(self) -> None:
        """Widen the covariance by what may have changed in a step."""
        self._covariance *= 1 - 1 / HORIZON
        self._covariance += (self._scale**2 / HORIZON) * self._prior
        self._covariance += _outer(SPEED_DRIFT**2 * self.coefficients, self.coefficients)

    @property
    def _scale(self) -> float:
        """How large the coefficients are, compared with the start: what is uncertain about them grows with them."""
        return float(self.coefficients.sum()) / self._start_sum

    def _correct(self, relative: Floats, error: float) -> None:
        """Move the coefficients to where ``relative . coefficients``, now 1, is nearer to ``1 + error``."""
        shared = self._covariance @ relative
        variance = float(relative @ shared) + NOISE**2
        step = shared * (error / variance)
        blocked = self.coefficients + step < self._lowest
        if blocked.any():
            # what cannot move explains nothing: the rest has to
            free = np.where(blocked, 0.0, relative)
            step = self._covariance @ free
            step *= error / (float(free @ step) + NOISE**2)
        self._covariance -= _outer(shared / variance, shared)
        self.coefficients += step
        np.maximum(self.coefficients, self._lowest, out=self.coefficients)
        np.minimum(self.coefficients, MAX_RATIO, out=self.coefficients)


def _outer(first: Floats, second: Floats) -> Floats:
    """As numpy's, but in a third of the time for short vectors."""
    return first[:, None] * second
