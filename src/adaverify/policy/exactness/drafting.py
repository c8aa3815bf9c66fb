"""Every block a drafter may propose, drawn afresh or from noise that a key may reuse."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Protocol

from adaverify.policy.exactness.law import Block, Law, Pair, Text, one_hot

# position, key, and what is known of the noise with that key
Noise = tuple[tuple[int, Hashable, Any], ...]


class DraftSource(Protocol):
    """Draws drafts from noise that may be used again."""

    def draw(self, law: Law, position: int, depth: int, noise: Noise) -> Iterator[tuple[Fraction, int, Noise]]:
        """Yield the chance of each token of a law, the token, and what is then known of the noise."""

    def look(
        self, law: Law, token: int, position: int, depth: int, noise: Noise
    ) -> Iterator[tuple[Fraction, bool, Noise]]:
        """Yield whether a drawn token won by a margin, with the chance and what is then known of the noise."""


@dataclass(frozen=True)
class NoiseSource:
    """Where the uniforms that draw drafts come from.

    Attributes
    ----------
    key : callable, optional
        Absolute position and depth in the block (both from 0) to the key of the uniform; equal keys of one
        request give the same uniform. None draws every draft afresh.
    levels : int
        Keyed uniforms take this many equally likely values; every draft probability must be a multiple of one.
    shared : bool
        Equal keys give the same uniform to all requests, as with one seed for all and nothing else in the key.
    """

    key: Callable[[int, int], Hashable] | None = None
    levels: int = 1
    shared: bool = False

    def draw(self, law: Law, position: int, depth: int, noise: Noise) -> Iterator[tuple[Fraction, int, Noise]]:
        """Invert the law's distribution function at a uniform number."""
        if self.key is None:
            yield from ((part, token, noise) for token, part in enumerate(law) if part)
            return
        key = self.key(position, depth)
        known = [level for _, other, level in noise if other == key]
        for level in known or range(self.levels):
            chance = Fraction(1) if known else Fraction(1, self.levels)
            yield chance, _invert(law, level, self.levels), noise if known else (*noise, (position, key, level))

    def look(
        self, law: Law, token: int, position: int, depth: int, noise: Noise
    ) -> Iterator[tuple[Fraction, bool, Noise]]:
        """Nothing to see: there was no race."""
        yield Fraction(1), False, noise


def draw_blocks(
    pair: Pair, text: Text, num_drafts: int, source: DraftSource, noise: Noise
) -> Iterator[tuple[Fraction, Block, Noise]]:
    """Enumerate the blocks that may follow ``text``.

    Parameters
    ----------
    noise : tuple of (position, key, what is known)
        Noise of this request that has been looked at.

    Yields
    ------
    chance : Fraction
    block : Block
    noise : tuple
        The same afterwards.
    """
    partial: list[tuple[Fraction, Block, Noise]] = [(Fraction(1), Block((), (), ()), noise)]
    for depth in range(num_drafts):
        extended = []
        for chance, block, known in partial:
            law = pair.draft(text, block.drafts)
            proposal = one_hot(law) if pair.greedy_drafts else law
            for part, token, revealed in source.draw(proposal, len(text) + depth, depth, known):
                longer = Block((*block.drafts, token), (*block.laws, law), (*block.proposals, proposal), block.wide)
                for seen, wide, told in source.look(proposal, token, len(text) + depth, depth, revealed):
                    extended.append((chance * part * seen, replace(longer, wide=(*block.wide, wide)), told))
        partial = extended
    yield from partial


def _invert(law: Law, level: int, levels: int) -> int:
    """Return the token whose share of the unit interval holds the whole ``level``-th of ``levels`` parts."""
    below = Fraction(0)
    for token, part in enumerate(law):
        if (part * levels).denominator != 1:
            raise ValueError(f"draft probability {part} is no multiple of 1/{levels}; give the noise more levels")
        below += part
        if Fraction(level, levels) < below:
            return token
    raise ValueError(f"law {law} sums to {below}, not 1")
