"""Rules with coupled verification: what is forbidden with the standard one is exact, as long as the noise is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from adaverify.policy.exactness.cases import (
    DSPARK_PAIR,
    FOOTNOTE_PAIR,
    Case,
    both,
    bounded_rule,
    by_position_and_depth,
    dspark_rule,
    fresh_rule,
    learning_rule,
    noise_setting,
    q_drawn,
    rising_rule,
    tie_rule,
)
from adaverify.policy.exactness.enumeration import Rule
from adaverify.policy.exactness.law import Block
from adaverify.policy.exactness.race import RaceSource
from adaverify.policy.exactness.rules import (
    BudgetRule,
    GivenScore,
    PrefixRule,
    by_bare_score,
    by_survival_deeper_first,
)
from adaverify.policy.exactness.verifying import (
    Verifier,
    verify_coupled,
    verify_coupled_redrawing,
    verify_standard,
    verify_standard_racing,
)
from adaverify.policy.exactness.worlds import (
    COSTS,
    Setting,
    fixed_pair,
    law_of,
    one_request,
)

RESIDUAL_PAIR = fixed_pair(law_of(".2", ".5", ".3"), law_of(".6", ".2", ".2"))


def won_wide(block: Block, depth: int) -> float:
    """Whether the draft won its race by a margin: it tells of the draw."""
    return 0.9 if block.wide[depth] else 0.4


def second_is_zero(block: Block, depth: int) -> float:
    """Whether the second draft is token 0: nothing is verified if it is not."""
    return float(block.drafts[1] == 0)


def margin_rule(K: int, num_requests: int) -> BudgetRule:
    """Build the shipped rule for coupled verification: margins, and a budget from the current block."""
    return BudgetRule(GivenScore(won_wide), K, COSTS[num_requests], fresh=True)


def drawn_rule(K: int, num_requests: int) -> BudgetRule:
    """Score by the drawn token's own probability, with a budget from the current block."""
    return BudgetRule(GivenScore(q_drawn), K, COSTS[num_requests], fresh=True)


def coupled_cases() -> tuple[Case, ...]:
    """List the rules for coupled verification, shipped ones first."""
    return (*_exact_cases(), *_biased_cases())


def _exact_cases() -> tuple[Case, ...]:
    deeper = replace(tie_rule(), admission=by_survival_deeper_first)
    bare = replace(rising_rule(), admission=by_bare_score)
    fresh, bounded = replace(dspark_rule(), fresh=True), replace(bounded_rule(), bound_by_valid=True)
    return (
        Case("coupled: fresh budget by margins", "exact", _margin_settings()),
        Case("coupled: fresh budget, autoregressive drafter", "exact", _raced(fresh_rule)),
        Case("coupled: fresh budget, DSpark example", "exact", (_alone(fresh, 2, 2),)),
        Case("coupled: fresh budget by the drawn token's q", "exact", _raced(drawn_rule)),
        Case("coupled: trim by the drawn token's q", "exact", (_footnote(RaceSource(), verify_coupled),)),
        Case("coupled: budget bounded by the drafts found finite", "exact", (_alone(bounded, 2, 2),)),
        Case(
            "coupled: ties by deeper position",
            "exact",
            (Setting((DSPARK_PAIR, DSPARK_PAIR), deeper, 2, 1, RaceSource(), verifier=verify_coupled),),
        ),
        Case("coupled: earlier draws, no running minimum", "exact", (_alone(bare, 2, 2),)),
        Case("coupled: stale budget, estimator refitted every round", "exact", _raced(learning_rule)),
        Case("coupled: greedy drafts", "exact", _raced(fresh_rule, greedy_drafts=True)),
        Case("coupled: greedy target", "exact", _raced(fresh_rule, greedy_target=True)),
        Case("coupled: verify nothing", "exact", _raced(_constant(0.0)), adaptive=False),
        Case("coupled: verify everything", "exact", _raced(_constant(1.0)), adaptive=False),
        Case(
            "coupled: drafts raced with noise of their own",
            "exact",
            (_footnote(RaceSource(by_position_and_depth), verify_coupled),),
        ),
    )


def _biased_cases() -> tuple[Case, ...]:
    keyed_by_depth = RaceSource(by_position_and_depth)
    verify_all = PrefixRule(lambda *_: 1.0)
    return (
        Case(
            "coupled: the target's noise keyed by depth, too",
            "biased",
            (Setting((DSPARK_PAIR,), PrefixRule(second_is_zero), 2, 2, keyed_by_depth, verifier=verify_coupled),),
        ),
        Case(
            "coupled: a fresh draw where the winners differ",
            "biased",
            (Setting((FOOTNOTE_PAIR,), verify_all, 1, 1, RaceSource(), verifier=verify_coupled_redrawing),),
            adaptive=False,
        ),
        Case(
            "standard verification, residual raced with the drafts' noise",
            "biased",
            (Setting((RESIDUAL_PAIR,), verify_all, 1, 1, RaceSource(), verifier=verify_standard_racing),),
            adaptive=False,
        ),
        Case(
            "standard verification of raced drafts, trimmed by the drawn token's q",
            "biased",
            (_footnote(RaceSource(), verify_standard),),
        ),
        Case(
            "standard verification of raced drafts, stale budget",
            "biased",
            (noise_setting(RaceSource()),),
        ),
    )


def _raced(rule: Callable[[int, int], Rule], **kind: bool) -> tuple[Setting, ...]:
    return tuple(replace(setting, source=RaceSource(), verifier=verify_coupled) for setting in both(rule, **kind))


def _margin_settings() -> tuple[Setting, ...]:
    source = RaceSource(margin=Fraction(2))
    # K = 2 on two tokens, then on three
    chosen = one_request(margin_rule)[1:]
    return tuple(replace(setting, source=source, verifier=verify_coupled) for setting in chosen)


def _alone(rule: Rule, K: int, num_tokens: int) -> Setting:
    return Setting((DSPARK_PAIR,), rule, K, num_tokens, RaceSource(), verifier=verify_coupled)


def _footnote(source: RaceSource, verifier: Verifier) -> Setting:
    return Setting((FOOTNOTE_PAIR,), PrefixRule(q_drawn), 1, 1, source, verifier=verifier)


def _constant(score: float) -> Callable[[int, int], Rule]:
    return lambda K, num_requests: PrefixRule(lambda *_: score)
