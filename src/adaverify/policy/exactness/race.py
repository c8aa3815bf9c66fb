"""Coupled noise in exact fractions: what is known of a position's exponential times is a polygon.

The winner of a race among three tokens depends on their times divided by the sum of them alone. These *shares* are
uniform on a triangle, and "token i wins under a law" is bounded by straight lines in it, so every chance is a quotient
of areas of polygons with rational corners. Two tokens are three of which the last never wins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from adaverify.policy.exactness.law import Law

# shares of tokens 0 and 1; token 2 has the rest
Corner = tuple[Fraction, Fraction]
Region = tuple[Corner, ...]
RaceNoise = tuple[tuple[int, Hashable, Region], ...]

_MAX_TOKENS = 3
_ZERO, _ONE = Fraction(0), Fraction(1)
EVERYTHING: Region = ((_ZERO, _ZERO), (_ONE, _ZERO), (_ZERO, _ONE))


def by_position(position: int, depth: int) -> int:
    """Key of noise that stays with its absolute position."""
    return position


@dataclass(frozen=True)
class RaceSource:
    """Noise by which drafter and target race; what has been seen of it is remembered.

    Attributes
    ----------
    key : callable
        Absolute position and depth in the block (both from 0) to the key of the noise; that of the position alone is
        what is shipped.
    margin : Fraction, optional
        Tell of every draft whether its score is so many times the second best's: what a perturbed margin may say.
    """

    key: Callable[[int, int], Hashable] = by_position
    margin: Fraction | None = None

    def draw(self, law: Law, position: int, depth: int, noise: RaceNoise) -> Iterator[tuple[Fraction, int, RaceNoise]]:
        """Race a law; yields the chance of each winner, the winner, and what is then known of the noise."""
        for chance, token, region in race(self._known(position, depth, noise), law):
            yield chance, token, self._learn(position, depth, region, noise)

    def look(
        self, law: Law, token: int, position: int, depth: int, noise: RaceNoise
    ) -> Iterator[tuple[Fraction, bool, RaceNoise]]:
        """Whether the winner won by the margin; yields chance, answer, and what is then known of the noise."""
        if self.margin is None:
            yield Fraction(1), False, noise
            return
        for chance, wide, region in win_by(self._known(position, depth, noise), law, token, self.margin):
            yield chance, wide, self._learn(position, depth, region, noise)

    def _known(self, position: int, depth: int, noise: RaceNoise) -> Region:
        key = self.key(position, depth)
        return next((region for _, other, region in noise if other == key), EVERYTHING)

    def _learn(self, position: int, depth: int, region: Region, noise: RaceNoise) -> RaceNoise:
        key = self.key(position, depth)
        return (*(entry for entry in noise if entry[1] != key), (position, key, region))


@lru_cache(maxsize=1 << 16)
def race(region: Region, law: Law) -> tuple[tuple[Fraction, int, Region], ...]:
    """Chance of each winner under ``law``, given that the shares lie in ``region``; and the part where it wins."""
    whole = area(region)
    outcomes = []
    for token, part in enumerate(law):
        if part:
            won = region
            for other in range(len(law)):
                if other != token:
                    won = clip(won, _lead(law, token, other))
            if area(won):
                outcomes.append((area(won) / whole, token, won))
    return tuple(outcomes)


@lru_cache(maxsize=1 << 16)
def win_by(region: Region, law: Law, token: int, margin: Fraction) -> tuple[tuple[Fraction, bool, Region], ...]:
    """Split ``region``, where ``token`` wins, by whether its score is ``margin`` times that of all others."""
    whole, rest = area(region), region
    parts = []
    for other in range(len(law)):
        if other != token:
            lead = _lead(law, token, other, margin)
            parts.append((False, clip(rest, tuple(-c for c in lead))))
            rest = clip(rest, lead)
    parts.append((True, rest))
    return tuple((area(part) / whole, wide, part) for wide, part in parts if area(part))


def clip(region: Region, line: tuple[Fraction, ...]) -> Region:
    """The part of a convex polygon where the shares weighted by ``line`` sum to 0 or more."""
    corners: list[Corner] = []
    for start, end in zip(region, region[1:] + region[:1], strict=True):
        at_start, at_end = _height(start, line), _height(end, line)
        if at_start >= 0:
            corners.append(start)
        if at_start * at_end < 0:
            along = at_start / (at_start - at_end)
            corners.append((start[0] + along * (end[0] - start[0]), start[1] + along * (end[1] - start[1])))
    if not corners:
        return ()
    # equal polygons begin alike
    first = corners.index(min(corners))
    return tuple(corners[first:] + corners[:first])


def area(region: Region) -> Fraction:
    """Area of a polygon whose corners go round against the clock."""
    sides = zip(region, region[1:] + region[:1], strict=True)
    return sum((a[0] * b[1] - b[0] * a[1] for a, b in sides), _ZERO) / 2


def _lead(law: Law, token: int, other: int, margin: Fraction = _ONE) -> tuple[Fraction, ...]:
    """Line on whose upper side the score law/share of ``token`` is at least ``margin`` times that of ``other``."""
    line = [_ZERO] * _MAX_TOKENS
    line[other] = law[token]
    line[token] = -margin * law[other]
    return tuple(line)


def _height(corner: Corner, line: tuple[Fraction, ...]) -> Fraction:
    return line[0] * corner[0] + line[1] * corner[1] + line[2] * (1 - corner[0] - corner[1])
