"""A claim and how it is judged: by intervals, never by values alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.evaluate.bootstrap import Estimate, interval

Verdict = Literal["holds", "does not hold", "undecided"]
Side = Literal["above", "below"]
Bar = tuple[Side, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and what the trace says of it.

    Attributes
    ----------
    drafter : str
        Label of a pair, or ``all drafters``.
    text : str
        The claim, with its bar.
    sampling : str
        ``sampled`` where greedy requests were left out, else ``all``.
    verdict : str
        ``holds`` or ``does not hold`` where the interval lies on one side of the bar, else ``undecided``.
    bars : dict of str to Bar
        The numbers it rests on, and the side of its bar on which each has to lie.
    numbers : dict of str to Estimate, float or None
    why : str
        What is missing, where that is why it is undecided.
    """

    drafter: str
    text: str
    verdict: Verdict
    bars: dict[str, Bar]
    numbers: dict[str, Estimate | float | None]
    why: str = ""
    sampling: str = "all"

    @classmethod
    def judged(
        cls,
        drafter: str,
        text: str,
        bars: dict[str, Bar],
        numbers: dict[str, Estimate | float | None],
        why: str = "",
        sampling: str = "all",
    ) -> Claim:
        """The claim with the verdict that its numbers give it; ``bars`` are for numbers with intervals."""
        estimates = {name: numbers[name] for name in bars}
        conditions = [(e, *bars[name]) for name, e in estimates.items() if isinstance(e, Estimate)]
        text += "; judged on sampled requests" if sampling == "sampled" else ""
        return cls(drafter, text, judge(*conditions), bars, numbers, why, sampling)

    def undecided(self, why: str) -> Claim:
        """The same claim without a verdict, and why."""
        return replace(self, verdict="undecided", why=why)

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        numbers = {name: vars(n) if isinstance(n, Estimate) else n for name, n in self.numbers.items()}
        return {**vars(self), "numbers": numbers}


def judge(*conditions: tuple[Estimate, Side, float]) -> Verdict:
    """Whether all estimates lie on their side of their bar, by their intervals; undecided without a condition."""
    verdicts = {_side_of_bar(*condition) for condition in conditions} or {"undecided"}
    if "does not hold" in verdicts:
        return "does not hold"
    return "undecided" if "undecided" in verdicts else "holds"


def _side_of_bar(estimate: Estimate, side: Side, bar: float) -> Verdict:
    if estimate.low is None or estimate.high is None:
        return "undecided"
    is_above, is_below = estimate.low > bar, estimate.high < bar
    holds, fails = (is_above, is_below) if side == "above" else (is_below, is_above)
    return "holds" if holds else "does not hold" if fails else "undecided"


def ratio_of(numerator: Floats, denominator: Floats, values: tuple[float, float], enough: bool) -> Estimate:
    """A ratio of two positive numbers; its interval is made on the logarithm."""
    if min(values) <= 0:
        return Estimate()
    with np.errstate(divide="ignore", invalid="ignore"):
        replicates = np.log(numerator) - np.log(denominator)
    logarithm = interval(float(np.log(values[0] / values[1])), replicates, enough=enough, kind="widest")
    return Estimate(
        *(None if x is None else float(np.exp(x)) for x in (logarithm.value, logarithm.low, logarithm.high))
    )
