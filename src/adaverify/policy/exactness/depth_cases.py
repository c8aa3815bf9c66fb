"""Rules that choose how deep to draft: what a block's end may depend on, and what may depend on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adaverify.policy.exactness.cases import DSPARK_PAIR, Case, both, by_first_draw
from adaverify.policy.exactness.depth_rules import DepthRule
from adaverify.policy.exactness.law import Block
from adaverify.policy.exactness.race import RaceSource
from adaverify.policy.exactness.rules import EstimatorScore, GivenScore
from adaverify.policy.exactness.verifying import verify_coupled
from adaverify.policy.exactness.worlds import COSTS, Setting, fixed_pair, law_of

# Verification so cheap, by number of requests, that all that is worth drafting is worth verifying.
CHEAP_COSTS = {1: (10.0, 10.5, 11.0, 11.5), 2: (10.0, 10.0, 10.5, 11.0, 11.5, 12.0, 12.5, 13.0)}
NEIGHBOUR_PAIR = fixed_pair(*[law_of("1/4", "3/4")] * 2)


def depth_rule(K: int, num_requests: int) -> DepthRule:
    """Build the shipped rule where drafts compete for a budget more often than not."""
    score = EstimatorScore(K, slope=1.5, intercept=-0.2)
    return DepthRule(score, K, COSTS[num_requests], tuple(0.5 * depth for depth in range(K + 1)), (0.75,) * K)


def stopping_rule(K: int, num_requests: int) -> DepthRule:
    """Build the shipped rule where blocks end early."""
    draft_costs = tuple(1.5 * depth for depth in range(K + 1))
    return replace(
        depth_rule(K, num_requests),
        verify_costs=CHEAP_COSTS[num_requests],
        draft_costs=draft_costs,
        expected=(0.6,) * K,
    )


def probing_rule(K: int, num_requests: int) -> DepthRule:
    """Build the shipped rule where nothing is drafted but in every second round."""
    return replace(depth_rule(K, num_requests), expected=(0.1,) * K, probe_every=2)


def depth_cases() -> tuple[Case, ...]:
    """List the rules, shipped ones first."""
    alone, rivals = alone_setting(), rivals_setting()
    searching, stopping = _with(alone, searches_made=True), _with(rivals, stops_while_trimming=True)
    return (
        Case("depth and budget from earlier blocks", "exact", both(depth_rule)),
        Case("early stop where all drafts made are verified", "exact", (*both(stopping_rule), alone)),
        Case("no early stop where drafts compete", "exact", (rivals,)),
        Case("no drafts but for probes on a schedule", "exact", both(probing_rule)),
        Case("coupled: early stop, budget searched over the drafts made", "exact", (_raced(searching, 2),)),
        Case("coupled: early stop where drafts compete", "exact", (_raced(stopping, 1),)),
        Case("budget searched over the drafts made before an early stop", "biased", (searching,)),
        Case("early stop where drafts compete", "biased", (stopping,)),
    )


def alone_setting() -> Setting:
    """Build a world in which the third draft is made if the first drew token 0, and three pay where two do not.

    Searched over two drafts the budget is 0, over three it is 3: the first draft would be verified if it is token 0.
    """
    score = by_first_draw(0.8, 0.9, 0.0)
    rule = DepthRule(score, 3, (10.0, 31.0, 31.5, 32.0), (0.0, 0.01, 0.02, 0.03), (1.0, 1.0, 1.0))
    return Setting((DSPARK_PAIR,), rule, 3, 1)


def rivals_setting() -> Setting:
    """Build a world in which another request's third draft takes the place of this one's first.

    Three drafts are verified for both. All are drafted to the third if the first request drew token 0, whose second
    confidence is high then. So stopping would have its first draft verified if it is token 1.
    """

    def score(block: Block, depth: int) -> float:
        if block.laws[0] == NEIGHBOUR_PAIR.draft((), ()):
            return 0.95
        return 0.5 if depth == 0 else (0.9, 0.0)[block.drafts[0]]

    rule = DepthRule(
        GivenScore(score),
        3,
        verify_costs=(10.0, 10.0, 10.1, 10.2, 10.3, 12.0, 12.1, 12.2),
        draft_costs=(0.0, 0.1, 0.2, 1.5),
        expected=(0.5, 0.5, 0.5),
        first=((0.05, 0.05, 0.05), (0.95, 0.95, 0.95)),
    )
    return Setting((DSPARK_PAIR, NEIGHBOUR_PAIR), rule, 3, 1)


def _with(setting: Setting, **changes: Any) -> Setting:
    assert isinstance(setting.rule, DepthRule)
    return replace(setting, rule=replace(setting.rule, **changes))


def _raced(setting: Setting, num_tokens: int) -> Setting:
    return replace(setting, num_tokens=num_tokens, source=RaceSource(), verifier=verify_coupled)
