"""What came of a scenario: rates by refit interval, and how long an estimator was ill.

An interval is 100 steps, the refit interval of the paper; the *healthy rate* of an interval is that of the offline fit,
on the same rounds, and the *share* of a policy is its rate in the interval by the healthy one. Rates are tokens a
millisecond of cost, with the tokens that the true chances promise in place of those drawn; no other smoothing is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adaverify.lab.scenarios.scenario import INTERVAL, Scenario
from adaverify.lab.scenarios.watched import Calibration
from adaverify.lab.trace.trace import Bools, Floats

HEALTHY, LOW = 0.98, 0.95
"""Shares of the healthy rate: from here on an estimator has recovered; below here it is ill."""


@dataclass(frozen=True)
class Course:
    """One policy over the drawings of a scenario.

    Attributes
    ----------
    policy : str
    tokens, milliseconds : float64 [S, I]
        By seed and refit interval.
    calibration : Calibration
        Of all seeds together.
    """

    policy: str
    tokens: Floats
    milliseconds: Floats
    calibration: Calibration

    @property
    def rates(self) -> Floats:
        """Tokens a millisecond, [S, I]."""
        return np.asarray(self.tokens / self.milliseconds)

    def rate(self, intervals: Bools) -> Floats:
        """Tokens a millisecond over some intervals, [S]."""
        return np.asarray(self.tokens[:, intervals].sum(axis=1) / self.milliseconds[:, intervals].sum(axis=1))

    def relative_to(self, other: Course, intervals: Bools) -> Floats:
        """Its rate over some intervals by that of another, [S]."""
        return np.asarray(self.rate(intervals) / other.rate(intervals))


def refits_to_recover(course: Course, healthy: Course) -> list[int | None]:
    """Refit intervals until a course has recovered, for each seed; None for never.

    n if the interval after n whole ones has a share of at least :data:`HEALTHY`, and so has the time from there to the
    end taken together; the smallest such n. 0 for one that was never ill.
    """
    shares = course.rates / healthy.rates
    # Sums over each interval and all that follow it.
    tokens, cost, healthy_tokens, healthy_cost = (
        values[:, ::-1].cumsum(axis=1)[:, ::-1]
        for values in (course.tokens, course.milliseconds, healthy.tokens, healthy.milliseconds)
    )
    well = (shares >= HEALTHY) & (tokens / cost >= HEALTHY * healthy_tokens / healthy_cost)
    return [int(row.argmax()) if row.any() else None for row in well]


def longest_low(course: Course, healthy: Course) -> list[int]:
    """The most intervals in a row with a share below :data:`LOW`, for each seed."""
    longest = []
    for row in course.rates / healthy.rates < LOW:
        edges = np.flatnonzero(np.diff(row.astype(np.int8), prepend=0, append=0))
        longest.append(int((edges[1::2] - edges[::2]).max(initial=0)))
    return longest


@dataclass(frozen=True)
class Outcome:
    """A scenario as it was played.

    Attributes
    ----------
    scenario : Scenario
    seeds : tuple of int
    oracle, offline : Course
    estimators : tuple of Course
    """

    scenario: Scenario
    seeds: tuple[int, ...]
    oracle: Course
    offline: Course
    estimators: tuple[Course, ...]

    @property
    def measured(self) -> Bools:
        """Intervals whose rates are compared, [I]."""
        return np.array(self.scenario.measured)

    def part(self, course: Course) -> Course:
        """The measured intervals alone."""
        return Course(
            course.policy, course.tokens[:, self.measured], course.milliseconds[:, self.measured], course.calibration
        )

    def shares(self, course: Course) -> Floats:
        """Share of the healthy rate in every measured interval, [S, I]."""
        return np.asarray((course.rates / self.offline.rates)[:, self.measured])

    def refits_to_recover(self, course: Course) -> list[int | None]:
        """See :func:`refits_to_recover`; counted from the first measured step."""
        return refits_to_recover(self.part(course), self.part(self.offline))

    def longest_low(self, course: Course) -> list[int]:
        """See :func:`longest_low`; in measured intervals."""
        return longest_low(self.part(course), self.part(self.offline))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ``docs/scenarios.md`` describes them."""
        scenario = self.scenario
        return {
            "scenario": scenario.name,
            "what": scenario.what,
            "num_speculative_tokens": scenario.num_speculative_tokens,
            "phases": [
                {"name": phase.name, "first_step": first, "num_steps": phase.num_steps, "seats": phase.seats}
                | {"measured": phase.measured}
                for phase, first in zip(scenario.phases, scenario.first_steps, strict=True)
            ],
            "interval_steps": INTERVAL,
            "seeds": list(self.seeds),
            "policies": [self._described(course) for course in (self.oracle, self.offline, *self.estimators)],
        }

    def _described(self, course: Course) -> dict[str, Any]:
        return {
            "policy": course.policy,
            "tokens_per_second": (1e3 * course.rate(self.measured)).tolist(),
            "relative_to_oracle": course.relative_to(self.oracle, self.measured).tolist(),
            "relative_to_healthy": course.relative_to(self.offline, self.measured).tolist(),
            "refits_to_recover": self.refits_to_recover(course),
            "longest_below_95": self.longest_low(course),
            "share_over_time": self.shares(course).tolist(),
            "rate_over_time": (1e3 * course.rates).tolist(),
            "calibration": [
                {"phase": phase.name, **course.calibration.of_phase(number)}
                for number, phase in enumerate(self.scenario.phases)
            ],
        }
