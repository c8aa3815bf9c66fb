"""Budgets from costs that follow the clock: what rounds took is known to the next ones, and tells what was drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from adaverify.policy.exactness.law import Block
from adaverify.policy.exactness.rules import BudgetRule

# Costs of 1, 2, ... packed tokens after a slow round, by number of requests, by which less is worth verifying.
SLOW_COSTS = {1: (10.0, 19.0, 28.0, 37.0), 2: (10.0, 10.0, 19.0, 28.0, 37.0, 46.0, 55.0, 64.0)}


@dataclass(frozen=True)
class TimedRule:
    """A budget rule whose costs depend on the time of a round, which depends on the drafts drawn in it.

    Drafting is slow where a request's first draft is token 1: as much as a clock can tell.

    Attributes
    ----------
    rule : BudgetRule
        With the costs after a quick round.
    slow_costs : tuple of float
        Those after a slow one.
    present : bool
        Forbidden: price a round by the time of its own drafting, instead of by the round before.
    """

    rule: BudgetRule
    slow_costs: tuple[float, ...]
    present: bool = False

    def start(self, num_requests: int) -> tuple[Any, bool]:
        """Memory before the first round: that of the rule, and whether the last round was slow."""
        return self.rule.start(num_requests), False

    def admit(self, memory: tuple[Any, bool], blocks: tuple[Block, ...]) -> tuple[int, ...]:
        """Drafts verified, by request."""
        before, was_slow = memory
        slow = is_slow(blocks) if self.present else was_slow
        rule = replace(self.rule, costs=self.slow_costs) if slow else self.rule
        return rule.admit(before, blocks)

    def remember(self, memory: tuple[Any, bool], blocks: tuple[Block, ...], admitted: Any, accepted: Any) -> Any:
        """Memory for the next round."""
        return self.rule.remember(memory[0], blocks, admitted, accepted), is_slow(blocks)


def is_slow(blocks: tuple[Block, ...]) -> bool:
    """Whether drafting these blocks took long."""
    return any(block.drafts[:1] == (1,) for block in blocks)
