"""The law of a draft: what its feature looks like, and how likely it is accepted."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np

from adaverify.lab.trace.trace import Floats

CLIFF = 2
"""Depth, from 0, of the first draft beyond the cliff."""


@dataclass(frozen=True)
class Law:
    """The feature f of draft i, from 1, is normal; it is accepted with chance ``sigmoid(slope f + b_i)``.

    The defaults are near to what a public pair shows (vLLM pull request 52228, blog of 2026-10-14): slope .501, first
    intercept -.137, mean q_max .78, acceptance .72.

    Attributes
    ----------
    slope, intercept : float
        The intercept is that of position 1.
    deeper : float
        What each further position adds to its intercept.
    cliff : float
        What positions from the third on add to theirs.
    mean, deviation : float
        Of the feature at position 1.
    mean_deeper : float
        What each further position adds to the mean of its feature.
    chance : float
        In place of the sigmoid, the chance of every draft; nan for the sigmoid.
    """

    slope: float = 0.501
    intercept: float = -0.137
    deeper: float = -0.06
    cliff: float = 0.0
    mean: float = 2.4
    deviation: float = 2.3
    mean_deeper: float = -0.1
    chance: float = np.nan

    @classmethod
    def between(cls, start: Law, end: Law, share: float) -> Law:
        """The law that has gone this share of the straight way from ``start`` to ``end``."""
        return cls(*(a + share * (b - a) for a, b in zip(astuple(start), astuple(end), strict=True)))


ORDINARY = Law()


def over_time(start: Law, end: Law, num_steps: int) -> dict[str, Floats]:
    """Every number of the law in each step, [T], on a straight way from ``start`` to ``end``."""
    ways = np.linspace(astuple(start), astuple(end), num_steps, axis=1)
    return {field.name: way for field, way in zip(fields(Law), ways, strict=True)}
