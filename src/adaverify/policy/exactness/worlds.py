"""Small worlds in which rules are tried: pairs of models and what they cost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from adaverify.policy.exactness.drafting import DraftSource
from adaverify.policy.exactness.enumeration import Enumeration, Rule, enumerate_output
from adaverify.policy.exactness.law import Law, Pair, Text, marginal, one_hot, target_law, total_variation
from adaverify.policy.exactness.verifying import Verifier, verify_standard

# Costs of 1, 2, ... packed tokens, by number of requests, on which the best budget depends on every survival.
COSTS = {1: (10.0, 17.0, 21.0, 23.0), 2: (10.0, 10.0, 14.5, 18.0, 20.0, 21.0, 22.0, 23.0)}
# The same where one draft for the whole batch is always best.
ONE_DRAFT_COSTS = {1: (10.0, 10.1, 1000.0), 2: (10.0, 10.0, 10.1, 1000.0)}
# The same where two drafts for a batch of two are.
TWO_DRAFT_COSTS = (10.0, 10.0, 10.1, 10.2, 1000.0)
# The step rates 1, .5, .45 of the DSpark paper's appendix (arXiv 2607.05147), as costs.
DSPARK_COSTS = (1.0, 1 / 0.5, 1 / 0.45)


@dataclass(frozen=True)
class Setting:
    """A rule in one world; see :func:`~adaverify.policy.exactness.enumeration.enumerate_output` for the parameters.

    With ``each_alone`` every request's own law is compared, not the joint one: shared noise ties requests together
    without making any of them wrong.
    """

    pairs: tuple[Pair, ...]
    rule: Rule
    num_speculative_tokens: int
    num_tokens: int
    source: DraftSource | None = None
    each_alone: bool = False
    verifier: Verifier = verify_standard

    def enumerate(self) -> Enumeration:
        """Exact output of the rule."""
        K, length = self.num_speculative_tokens, self.num_tokens
        return enumerate_output(self.pairs, self.rule, K, length, self.source, self.verifier)

    def distance(self, enumeration: Enumeration) -> float:
        """Total variation between the rule's output and the target's law; the largest, with ``each_alone``."""
        wanted = target_law(self.pairs, self.num_tokens)
        if not self.each_alone:
            return float(total_variation(enumeration.law, wanted))
        requests = range(len(self.pairs))
        return float(max(total_variation(marginal(enumeration.law, r), marginal(wanted, r)) for r in requests))


def law_of(*parts: str) -> Law:
    """Law from fractions or decimals written as text, which keeps them exact."""
    return tuple(Fraction(part) for part in parts)


def fixed_pair(target: Law, draft: Law) -> Pair:
    """Models that ignore what precedes."""
    return Pair(lambda text: target, lambda text, drawn: draft)


def random_pair(
    seed: int,
    vocab_size: int = 2,
    parallel: bool = False,
    greedy_drafts: bool = False,
    greedy_target: bool = False,
) -> Pair:
    """Models whose every law is random, different after every text, and the same for the same seed."""

    @cache
    def random_law(*key: object) -> Law:
        stream = random.Random(repr((seed, *key)))
        weights = [stream.choice((1, 2, 5, 12)) for _ in range(vocab_size)]
        return tuple(Fraction(weight, sum(weights)) for weight in weights)

    def target(text: Text) -> Law:
        p = random_law("target", text)
        return one_hot(p) if greedy_target else p

    def draft(text: Text, drawn: Text) -> Law:
        return random_law("draft", text, len(drawn)) if parallel else random_law("draft", text + drawn)

    return Pair(target, draft, greedy_drafts)


def one_request(
    rule: Callable[[int, int], Rule],
    parallel: bool = False,
    greedy_drafts: bool = False,
    greedy_target: bool = False,
) -> tuple[Setting, ...]:
    """Random worlds of one request; ``rule`` is made from K and the number of requests."""
    kind = (parallel, greedy_drafts, greedy_target)
    return (
        Setting((random_pair(5, 2, *kind),), rule(3, 1), 3, 4),
        Setting((random_pair(8, 2, *kind),), rule(2, 1), 2, 4),
        Setting((random_pair(7, 3, *kind),), rule(2, 1), 2, 3),
    )


def two_requests(
    rule: Callable[[int, int], Rule],
    parallel: bool = False,
    greedy_drafts: bool = False,
    greedy_target: bool = False,
) -> tuple[Setting, ...]:
    """Random worlds of two requests with models of their own."""
    kind = (parallel, greedy_drafts, greedy_target)
    pairs = random_pair(21, 2, *kind), random_pair(41, 2, *kind)
    return Setting(pairs, rule(2, 2), 2, 3), Setting(pairs, rule(3, 2), 3, 2)
