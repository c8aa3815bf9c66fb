"""What becomes of admitted drafts: standard and coupled verification, and ways of doing it that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from adaverify.policy.exactness.drafting import DraftSource, Noise
from adaverify.policy.exactness.law import Block, Law, Pair, Text

Outcome = tuple[Fraction, Text, int, Noise]
"""Chance, emitted tokens, number of accepted drafts, and what is known of the noise afterwards."""
Verifier = Callable[[Pair, Text, Block, int, DraftSource, Noise], Iterator[Outcome]]
"""Verifies the first drafts of a block behind a text."""


def verify_standard(
    pair: Pair, text: Text, block: Block, num_admitted: int, source: DraftSource, noise: Noise
) -> Iterator[Outcome]:
    """Rejection sampling (Leviathan et al. 2023): with randomness of its own, whatever drew the drafts."""
    reach = Fraction(1)
    for depth in range(num_admitted):
        kept, p = block.drafts[:depth], pair.target(text + block.drafts[:depth])
        accept = _acceptance(p, block, depth)
        if accept < 1:
            for token, part in enumerate(_residual(p, block.proposals[depth])):
                if part:
                    yield reach * (1 - accept) * part, (*kept, token), depth, noise
        reach *= accept
        if not reach:
            return
    kept = block.drafts[:num_admitted]
    for token, part in enumerate(pair.target(text + kept)):
        if part:
            yield reach * part, (*kept, token), num_admitted, noise


def verify_coupled(
    pair: Pair, text: Text, block: Block, num_admitted: int, source: DraftSource, noise: Noise
) -> Iterator[Outcome]:
    """Race the target's laws with the drafts' noise, and accept drafts while they win (Daliri et al. 2024)."""
    for chance, token, depth, seen in _races(pair, text, block, num_admitted, source, noise):
        yield chance, (*block.drafts[:depth], token), depth, seen


def verify_coupled_redrawing(
    pair: Pair, text: Text, block: Block, num_admitted: int, source: DraftSource, noise: Noise
) -> Iterator[Outcome]:
    """Forbidden: where a draft does not win the target's race, draw a fresh token from the target."""
    for chance, token, depth, seen in _races(pair, text, block, num_admitted, source, noise):
        kept = block.drafts[:depth]
        if depth == num_admitted:
            yield chance, (*kept, token), depth, seen
        else:
            yield from (
                (chance * part, (*kept, other), depth, seen)
                for other, part in enumerate(pair.target(text + kept))
                if part
            )


def verify_standard_racing(
    pair: Pair, text: Text, block: Block, num_admitted: int, source: DraftSource, noise: Noise
) -> Iterator[Outcome]:
    """Forbidden: rejection sampling that draws what follows from the noise that the drafts were drawn with."""
    reach = Fraction(1)
    for depth in range(num_admitted):
        kept, p = block.drafts[:depth], pair.target(text + block.drafts[:depth])
        accept = _acceptance(p, block, depth)
        if accept < 1:
            residual = _residual(p, block.proposals[depth])
            for part, token, seen in source.draw(residual, len(text) + depth, depth, noise):
                yield reach * (1 - accept) * part, (*kept, token), depth, seen
        reach *= accept
        if not reach:
            return
    kept = block.drafts[:num_admitted]
    for part, token, seen in source.draw(pair.target(text + kept), len(text) + num_admitted, num_admitted, noise):
        yield reach * part, (*kept, token), num_admitted, seen


def _races(
    pair: Pair, text: Text, block: Block, num_admitted: int, source: DraftSource, noise: Noise
) -> Iterator[tuple[Fraction, int, int, Noise]]:
    """The target's token that ends the round: its chance, the token, the drafts before it, what is then known."""
    reached = [(Fraction(1), noise)]
    for depth in range(num_admitted + 1):
        p = pair.target(text + block.drafts[:depth])
        agreeing = []
        for chance, known in reached:
            for part, token, seen in source.draw(p, len(text) + depth, depth, known):
                if depth < num_admitted and token == block.drafts[depth]:
                    agreeing.append((chance * part, seen))
                else:
                    yield chance * part, token, depth, seen
        reached = agreeing


def _acceptance(p: Law, block: Block, depth: int) -> Fraction:
    draft = block.drafts[depth]
    return min(Fraction(1), p[draft] / block.proposals[depth][draft])


def _residual(p: Law, q: Law) -> Law:
    parts = [max(Fraction(0), target - proposal) for target, proposal in zip(p, q, strict=True)]
    return tuple(part / sum(parts) for part in parts)
