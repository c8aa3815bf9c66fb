"""Confidence intervals by resampling requests, since the drafts of one request depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

REPLICATES = 1000
CONFIDENCE = 0.95
MIN_BLOCKS = 10

Kind = Literal["basic", "percentile", "widest"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval.

    Attributes
    ----------
    value : float or None
        None where it is undefined: no labels, or all alike.
    low, high : float or None
        None where fewer than 10 requests, or an undefined value, give no interval.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return "-"
        return f"{self.value:.4f}" if self.low is None else f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Resamples:
    """How often each replicate draws each block of requests.

    Attributes
    ----------
    weights : ndarray of float32, shape [R, G]
        Multinomial: G draws with replacement from the G blocks.
    """

    weights: NDArray[np.float32]

    @classmethod
    def draw(cls, num_blocks: int, replicates: int = REPLICATES, seed: int = 0) -> Resamples:
        """Replicates of ``num_blocks`` blocks; the same seed draws the same, so that differences are paired."""
        rng = np.random.default_rng(seed)
        weights = rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=replicates)
        return cls(weights.astype(np.float32))

    def sums(self, per_block: NDArray[Any]) -> Floats:
        """Sums of every replicate, shape [R, ...], from sums of every block, shape [G, ...]."""
        flat = np.ascontiguousarray(per_block.reshape(len(per_block), -1))
        return (self.weights @ flat).reshape(-1, *per_block.shape[1:]).astype(np.float64)


def auc_of_histograms(accepted: NDArray[Any], rejected: NDArray[Any]) -> Floats:
    """AUC of scores in ascending bins, those of one bin being ties.

    Parameters
    ----------
    accepted, rejected : ndarray, shape [..., Q]
        Drafts in each bin.

    Returns
    -------
    ndarray, shape [...]
        nan where all labels are alike.
    """
    below = rejected.cumsum(axis=-1, dtype=np.float64)
    area = (accepted * (below - 0.5 * rejected)).sum(axis=-1)
    pairs = accepted.sum(axis=-1, dtype=np.float64) * below[..., -1]
    return ratio(area, pairs)


def ratio(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Quotients; nan where the whole is 0."""
    return np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=np.asarray(whole) > 0)


def interval(
    value: float | None,
    replicates: Floats,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    enough: bool = True,
    kind: Kind = "basic",
) -> Estimate:
    """The interval of a value by its replicates; it always holds the value.

    Parameters
    ----------
    value : float or None
    replicates : ndarray, shape [R]
    bounds : tuple of float
        The interval ends there at the latest.
    enough : bool
        Whether there are requests enough for an interval.
    kind : str
        ``basic``: quantiles of the replicates, reflected at the value. That takes out the bias which resampling
        repeats, as that of the ECE, which noise alone makes positive. ``percentile``: the quantiles themselves, for
        what is bounded at both ends. ``widest``: from the lower of the two to the higher, for ratios of what noise
        makes larger.
    """
    usable = replicates[np.isfinite(replicates)]
    if value is None or not np.isfinite(value):
        return Estimate()
    if not enough or len(usable) < 0.9 * len(replicates):
        return Estimate(float(value))
    tail = (1 - CONFIDENCE) / 2
    quantiles = np.quantile(usable, [tail, 1 - tail])
    reflected = 2 * value - quantiles[::-1]
    ends = {"basic": (reflected,), "percentile": (quantiles,), "widest": (reflected, quantiles)}[kind]
    low, high = np.clip([min(end[0] for end in ends), max(end[1] for end in ends)], *bounds)
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))
