"""Rules for standard verification: every shipped one, and the forbidden ones next to their allowed counterparts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from adaverify.policy.exactness.drafting import DraftSource, NoiseSource
from adaverify.policy.exactness.enumeration import Rule
from adaverify.policy.exactness.law import Block, Pair
from adaverify.policy.exactness.race import by_position
from adaverify.policy.exactness.rules import (
    BudgetRule,
    EstimatorScore,
    GivenScore,
    PrefixRule,
    by_bare_score,
    by_running_minimum,
    by_survival_deeper_first,
)
from adaverify.policy.exactness.timed import SLOW_COSTS, TimedRule
from adaverify.policy.exactness.worlds import (
    COSTS,
    DSPARK_COSTS,
    ONE_DRAFT_COSTS,
    TWO_DRAFT_COSTS,
    Setting,
    fixed_pair,
    law_of,
    one_request,
    two_requests,
)


@dataclass(frozen=True)
class Case:
    """A rule, what is expected of it, and the worlds it is tried in.

    An ``adaptive`` rule must verify some drafts and leave out others in every world, or the verdict means nothing.
    """

    rule: str
    expected: Literal["exact", "biased"]
    settings: tuple[Setting, ...]
    adaptive: bool = True


DSPARK_PAIR = fixed_pair(law_of(".7", ".3"), law_of(".5", ".5"))
FOOTNOTE_PAIR = fixed_pair(law_of(".5", ".5"), law_of(".2", ".8"))


def q_max(block: Block, depth: int) -> float:
    """Give the largest probability of the draft's law: allowed."""
    return float(max(block.laws[depth]))


def q_drawn(block: Block, depth: int) -> float:
    """Give the drawn token's own probability: forbidden."""
    return float(block.laws[depth][block.drafts[depth]])


def q_drawn_before(block: Block, depth: int) -> float:
    """Give the previous draft's own probability: allowed with a running minimum."""
    return q_max(block, depth) if depth == 0 else q_drawn(block, depth - 1)


def by_first_draw(first: float, after_zero: float, after_one: float) -> GivenScore:
    """Score ``first``, then one of the two others by what the first draft drew."""
    return GivenScore(lambda block, depth: first if depth == 0 else (after_zero, after_one)[block.drafts[0]])


def estimator_rule(K: int, num_requests: int, *, fresh: bool = False, learns: bool = False) -> BudgetRule:
    """Build the shipped rule: log-odds of q_max, estimator, budget, admission by survival."""
    score = EstimatorScore(K, slope=1.5, intercept=-0.2, learns=learns)
    return BudgetRule(score, K, COSTS[num_requests], fresh=fresh)


def fresh_rule(K: int, num_requests: int) -> BudgetRule:
    """Build the shipped rule with the budget from the current block."""
    return estimator_rule(K, num_requests, fresh=True)


def learning_rule(K: int, num_requests: int) -> BudgetRule:
    """Build the shipped rule with an estimator refitted after every round."""
    return estimator_rule(K, num_requests, learns=True)


def timed_rule(K: int, num_requests: int) -> TimedRule:
    """Build the shipped rule with costs that follow what the rounds before took."""
    return TimedRule(estimator_rule(K, num_requests), SLOW_COSTS[num_requests])


def earlier_draws_rule(K: int, num_requests: int) -> BudgetRule:
    """Rank by what earlier positions drew, as a running minimum."""
    return BudgetRule(GivenScore(q_drawn_before), K, COSTS[num_requests], admission=by_running_minimum)


def by_position_and_depth(position: int, depth: int) -> tuple[int, int]:
    """Never reuse a uniform: every round emits a token, so no two share a position at the same depth."""
    return position, depth


def standard_cases() -> tuple[Case, ...]:
    """List the rules for standard verification, shipped ones first."""
    return (*_exact_cases(), *_biased_cases())


def _exact_cases() -> tuple[Case, ...]:
    tie, rising = tie_rule(), rising_rule()
    return (
        Case("stale budget, one request, autoregressive drafter", "exact", one_request(estimator_rule)),
        Case("stale budget, two requests, autoregressive drafter", "exact", two_requests(estimator_rule)),
        Case("stale budget, one request, block-parallel drafter", "exact", one_request(estimator_rule, parallel=True)),
        Case(
            "stale budget, two requests, block-parallel drafter", "exact", two_requests(estimator_rule, parallel=True)
        ),
        Case("stale budget, estimator refitted every round", "exact", both(learning_rule)),
        Case("stale budget, costs timed in the rounds before", "exact", both(timed_rule)),
        Case("stale budget, greedy drafts", "exact", both(estimator_rule, greedy_drafts=True)),
        Case("stale budget, greedy target", "exact", both(estimator_rule, greedy_target=True)),
        Case("fresh budget, block-parallel drafter", "exact", both(fresh_rule, parallel=True)),
        Case("fresh budget, greedy drafts", "exact", both(fresh_rule, greedy_drafts=True)),
        Case("stale budget, DSpark example", "exact", (Setting((DSPARK_PAIR,), dspark_rule(), 2, 3),)),
        Case("budget bounded by the drafts scheduled", "exact", (Setting((DSPARK_PAIR,), bounded_rule(), 2, 1),)),
        Case("ties by lower position", "exact", (Setting((DSPARK_PAIR, DSPARK_PAIR), tie, 2, 1),)),
        Case(
            "earlier draws, running minimum",
            "exact",
            (*both(earlier_draws_rule), Setting((DSPARK_PAIR,), rising, 2, 1)),
        ),
        Case("trim by q_max", "exact", both(lambda K, num_requests: PrefixRule(q_max, 0.65))),
        Case(
            "draft noise keyed by position and depth",
            "exact",
            (noise_setting(NoiseSource(by_position_and_depth, levels=4)),),
        ),
        Case("draft noise of each request's own", "exact", (_seed_setting(shared=False),)),
        Case("verify everything", "exact", both(lambda K, num_requests: PrefixRule(lambda *_: 1.0)), adaptive=False),
        Case("verify nothing", "exact", both(lambda K, num_requests: PrefixRule(lambda *_: 0.0)), adaptive=False),
    )


def _biased_cases() -> tuple[Case, ...]:
    fresh = replace(dspark_rule(), fresh=True)
    bounded = replace(bounded_rule(), bound_by_valid=True)
    tie = replace(tie_rule(), admission=by_survival_deeper_first)
    rising = replace(rising_rule(), admission=by_bare_score)
    timed = TimedRule(dspark_rule(), slow_costs=(1.0, 100.0, 200.0), present=True)
    return (
        Case("trim by the drawn token's q", "biased", (Setting((FOOTNOTE_PAIR,), PrefixRule(q_drawn), 1, 1),)),
        Case("fresh budget, autoregressive drafter", "biased", (Setting((DSPARK_PAIR,), fresh, 2, 1),)),
        Case("budget bounded by the drafts found finite", "biased", (Setting((DSPARK_PAIR,), bounded, 2, 1),)),
        Case("costs timed in the round they price", "biased", (Setting((DSPARK_PAIR,), timed, 2, 1),)),
        Case("ties by deeper position", "biased", (Setting((DSPARK_PAIR, DSPARK_PAIR), tie, 2, 1),)),
        Case("earlier draws, no running minimum", "biased", (Setting((DSPARK_PAIR,), rising, 2, 1),)),
        Case("draft noise keyed by position alone", "biased", (noise_setting(NoiseSource(by_position, levels=4)),)),
        Case("draft noise shared by requests of one seed", "biased", (_seed_setting(shared=True),)),
    )


def both(rule: Callable[[int, int], Rule], **kind: bool) -> tuple[Setting, ...]:
    """Random worlds of one request and of two."""
    return one_request(rule, **kind) + two_requests(rule, **kind)


def dspark_rule() -> BudgetRule:
    """Confidence .8, then .9 or 0 by the first draw."""
    return BudgetRule(by_first_draw(0.8, 0.9, 0.0), 2, DSPARK_COSTS)


def bounded_rule() -> BudgetRule:
    """As the DSpark example, with a non-finite confidence where that has 0."""
    return BudgetRule(by_first_draw(0.8, 0.9, float("nan")), 2, DSPARK_COSTS)


def tie_rule() -> BudgetRule:
    """Let the second draft tie with the first if that drew token 0, and is hopeless otherwise."""
    return BudgetRule(by_first_draw(0.8, 1.0, 0.0), 2, ONE_DRAFT_COSTS[2])


def rising_rule() -> BudgetRule:
    """Score a block so that the score rises if the first draft is token 0."""
    return BudgetRule(by_first_draw(0.5, 0.9, 0.1), 2, ONE_DRAFT_COSTS[1], admission=by_running_minimum)


def noise_setting(source: DraftSource) -> Setting:
    """Build a world in which the third confidence tells what the second draft drew, and the first draft may fail."""
    after = {0: law_of("3/4", "1/4"), 1: law_of("1/2", "1/2")}
    pair = Pair(
        target=lambda text: law_of(".3", ".7"),
        draft=lambda text, drawn: after[(text + drawn)[-1]] if text + drawn else law_of("1/2", "1/2"),
    )
    rule = BudgetRule(EstimatorScore(3, slope=2.0, intercept=0.5), 3, (1.0, 2.65, 2.65, 2.65))
    return Setting((pair,), rule, 3, 2, source)


def _seed_setting(shared: bool) -> Setting:
    """Build a world in which the second request's second confidence tells what the first request drew.

    Two drafts are verified: the second request's first, and either its second or the first request's first.
    """
    first, second = fixed_pair(law_of(".3", ".7"), law_of("1/2", "1/2")), fixed_pair(*[law_of("1/4", "3/4")] * 2)

    def score(block: Block, depth: int) -> float:
        if block.laws[0] == law_of("1/2", "1/2"):
            return 0.5 if depth == 0 else 0.0
        return 0.9 if depth == 0 or block.drafts[0] == 0 else 0.0

    rule = BudgetRule(GivenScore(score), 2, TWO_DRAFT_COSTS)
    source = NoiseSource(by_position_and_depth, levels=4, shared=shared)
    return Setting((first, second), rule, 2, 1, source, each_alone=True)
