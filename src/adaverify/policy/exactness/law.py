"""Laws over a small vocabulary, in exact fractions, and the pair of models that give them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

Law = tuple[Fraction, ...]
Text = tuple[int, ...]
Texts = tuple[Text, ...]


@dataclass(frozen=True)
class Pair:
    """Target and drafter of one request.

    Attributes
    ----------
    target : callable
        Emitted text to the target's law of the next token.
    draft : callable
        Text at the start of the block and the drafts drawn so far, to the drafter's law of the next draft. A
        block-parallel drafter looks only at how many were drawn.
    greedy_drafts : bool
        Drafts are the drafter's most likely tokens, so they are drawn from a one-hot law.
    """

    target: Callable[[Text], Law]
    draft: Callable[[Text, Text], Law]
    greedy_drafts: bool = False


@dataclass(frozen=True)
class Block:
    """One request's drafts of one round: everything a rule could look at, allowed or not.

    Attributes
    ----------
    drafts : tuple of int
        The drawn tokens; empty once the request has all its tokens.
    laws : tuple of Law
        The drafter's law at each draft, given the drafts before it.
    proposals : tuple of Law
        The laws the drafts were drawn from: ``laws``, or one-hot for greedy drafts.
    wide : tuple of bool
        Whether each draft won its race by a margin, where that was looked at.
    """

    drafts: Text
    laws: tuple[Law, ...]
    proposals: tuple[Law, ...]
    wide: tuple[bool, ...] = ()


def target_law(pairs: tuple[Pair, ...], num_tokens: int) -> dict[Texts, Fraction]:
    """Law of ``num_tokens`` tokens per request decoded one by one from the targets, requests independent."""
    singles = []
    for pair in pairs:
        law: dict[Text, Fraction] = {(): Fraction(1)}
        for _ in range(num_tokens):
            law = {
                (*text, token): chance * part
                for text, chance in law.items()
                for token, part in enumerate(pair.target(text))
                if part
            }
        singles.append(law)
    return {
        tuple(text for text, _ in joint): product(chance for _, chance in joint)
        for joint in itertools.product(*(law.items() for law in singles))
    }


def total_variation(first: dict[Texts, Fraction], second: dict[Texts, Fraction]) -> Fraction:
    """Total variation distance of two laws, 0 to 1."""
    zero = Fraction(0)
    return sum((abs(first.get(key, zero) - second.get(key, zero)) for key in first.keys() | second.keys()), zero) / 2


def marginal(law: dict[Texts, Fraction], request: int) -> dict[Texts, Fraction]:
    """Law of one request's text, whatever the others say."""
    result: dict[Texts, Fraction] = {}
    for texts, chance in law.items():
        key = (texts[request],)
        result[key] = result.get(key, Fraction(0)) + chance
    return result


def one_hot(law: Law) -> Law:
    """All mass on the most likely token, the first of equals."""
    best = law.index(max(law))
    return tuple(Fraction(token == best) for token in range(len(law)))


def product(parts: Iterable[Fraction]) -> Fraction:
    """Product of independent chances."""
    result = Fraction(1)
    for part in parts:
        result *= part
    return result
