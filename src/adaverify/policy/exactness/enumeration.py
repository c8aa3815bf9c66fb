"""Exact law of the text that speculative decoding emits under a rule, through every possible draw."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

from adaverify.policy.exactness.drafting import DraftSource, Noise, NoiseSource, draw_blocks
from adaverify.policy.exactness.law import Block, Pair, Text, Texts, product
from adaverify.policy.exactness.verifying import Verifier, verify_standard


class Rule(Protocol):
    """Decides which drafts of a round are verified; its memory passes from round to round."""

    def start(self, num_requests: int) -> Any:
        """Memory (hashable) before the first round."""

    def admit(self, memory: Any, blocks: tuple[Block, ...]) -> tuple[int, ...]:
        """Drafts verified, by request."""

    def remember(
        self, memory: Any, blocks: tuple[Block, ...], admitted: tuple[int, ...], accepted: tuple[int, ...]
    ) -> Any:
        """Memory (hashable) for the next round."""


@dataclass(frozen=True)
class Enumeration:
    """Outcome of :func:`enumerate_output`.

    Attributes
    ----------
    law : dict of Texts to Fraction
        Probability of each joint output of all requests.
    admits, trims : bool
        Whether a draft is ever verified, and whether one is ever left out.
    """

    law: dict[Texts, Fraction]
    admits: bool
    trims: bool


class State(NamedTuple):
    """What one round hands to the next."""

    texts: Texts
    noises: tuple[Noise, ...]
    memory: Any


def enumerate_output(
    pairs: tuple[Pair, ...],
    rule: Rule,
    num_speculative_tokens: int,
    num_tokens: int,
    source: DraftSource | None = None,
    verifier: Verifier = verify_standard,
) -> Enumeration:
    """Run rounds until every request has ``num_tokens`` tokens, through every possible draw.

    Parameters
    ----------
    pairs : tuple of Pair
        One per request.
    rule : Rule
    num_speculative_tokens : int
        K, drafts per request and round.
    num_tokens : int
        Tokens per request; what the last round emits beyond them is cut off.
    source : DraftSource, optional
        Draws every draft afresh by default.
    verifier : callable
        What is done with the drafts that the rule admits.

    Returns
    -------
    Enumeration
    """
    nothing: tuple[tuple[()], ...] = tuple(() for _ in pairs)
    states = {State(nothing, nothing, rule.start(len(pairs))): Fraction(1)}
    finished: defaultdict[Texts, Fraction] = defaultdict(Fraction)
    admits = trims = False
    source = source or NoiseSource()
    while states:
        following: defaultdict[State, Fraction] = defaultdict(Fraction)
        for state, weight in states.items():
            num_drafts = [num_speculative_tokens if len(text) < num_tokens else 0 for text in state.texts]
            for chance, blocks, noises in _draw_round(pairs, state, num_drafts, source):
                admitted = rule.admit(state.memory, blocks)
                admits = admits or any(admitted)
                trims = trims or any(count < drafts for count, drafts in zip(admitted, num_drafts, strict=True))
                rows = zip(pairs, state.texts, blocks, admitted, itertools.repeat(source), noises, strict=False)
                for part, emitted, accepted, seen in _verify_round(rows, verifier):
                    texts = tuple((text + more)[:num_tokens] for text, more in zip(state.texts, emitted, strict=True))
                    if all(len(text) == num_tokens for text in texts):
                        finished[texts] += weight * chance * part
                        continue
                    memory = rule.remember(state.memory, blocks, admitted, accepted)
                    following[State(texts, _still_ahead(seen, texts), memory)] += weight * chance * part
        states = following
    return Enumeration(dict(finished), admits, trims)


def _draw_round(
    pairs: tuple[Pair, ...], state: State, num_drafts: list[int], source: DraftSource
) -> Iterator[tuple[Fraction, tuple[Block, ...], tuple[Noise, ...]]]:
    if isinstance(source, NoiseSource) and source.shared:
        yield from _draw_shared_round(pairs, state, num_drafts, source)
        return
    rows = zip(pairs, state.texts, num_drafts, state.noises, strict=True)
    choices = [list(draw_blocks(pair, text, drafts, source, noise)) for pair, text, drafts, noise in rows]
    for joint in itertools.product(*choices):
        chances, blocks, noises = zip(*joint, strict=True)
        yield product(chances), blocks, noises


def _draw_shared_round(
    pairs: tuple[Pair, ...], state: State, num_drafts: list[int], source: NoiseSource
) -> Iterator[tuple[Fraction, tuple[Block, ...], tuple[Noise, ...]]]:
    """Draw one request after another, each knowing the uniforms that those before it have used."""
    known = tuple(dict.fromkeys(itertools.chain(*state.noises)))
    partial: list[tuple[Fraction, tuple[Block, ...], Noise]] = [(Fraction(1), (), known)]
    for pair, text, drafts in zip(pairs, state.texts, num_drafts, strict=True):
        partial = [
            (chance * part, (*blocks, block), revealed)
            for chance, blocks, noise in partial
            for part, block, revealed in draw_blocks(pair, text, drafts, source, noise)
        ]
    yield from ((chance, blocks, (noise,) * len(pairs)) for chance, blocks, noise in partial)


def _verify_round(
    rows: Iterable[tuple[Pair, Text, Block, int, DraftSource, Noise]], verifier: Verifier
) -> Iterator[tuple[Fraction, Texts, tuple[int, ...], tuple[Noise, ...]]]:
    outcomes = [list(verifier(*row)) if row[2].drafts else [(Fraction(1), (), 0, row[5])] for row in rows]
    for joint in itertools.product(*outcomes):
        chances, emitted, accepted, noises = zip(*joint, strict=True)
        yield product(chances), emitted, accepted, noises


def _still_ahead(noises: tuple[Noise, ...], texts: Texts) -> tuple[Noise, ...]:
    """Drop noise of positions that are emitted: no later draft sits there."""
    return tuple(
        tuple(entry for entry in noise if entry[0] >= len(text)) for noise, text in zip(noises, texts, strict=True)
    )
