"""The rule that chooses how deep to draft, and its forbidden relatives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaverify.policy.budget import choose_budget
from adaverify.policy.cost import MaterializedCosts
from adaverify.policy.depth import choose_depth, worth_another_pass
from adaverify.policy.exactness.law import Block
from adaverify.policy.exactness.rules import Rows, Score, by_survival
from adaverify.policy.survival import survival

NOT_DRAFTED = -1.0


class Outcome(NamedTuple):
    """How deep a round was drafted, and the drafts verified by request."""

    made: int
    admitted: tuple[int, ...]


class Memory(NamedTuple):
    """What one round leaves to the next: confidences of the drafts made, the score's state, rounds so far."""

    last: Rows
    state: Any
    number: int


@dataclass(frozen=True)
class DepthRule:
    """Depth and budget from earlier blocks; where the budget leaves nothing out, blocks may end early.

    A draft that was not made is known to nobody: the rule never looks at it.

    Attributes
    ----------
    score : Score
    num_speculative_tokens : int
    verify_costs : tuple of float
        Milliseconds of a target pass over 1, 2, ... packed tokens.
    draft_costs : tuple of float, length K + 1
        Milliseconds of drafting to depth 0, 1, ..., K.
    expected : tuple of float, length K
        Confidences expected of requests that have no block just behind them.
    first : tuple of tuples of float, optional
        Confidences that stand in for a round before the first, by request.
    probe_every : int
        Every so many rounds all is drafted and verified; 0 for never.
    stops_while_trimming : bool
        Forbidden with standard verification: end blocks early where drafts compete for a smaller budget, too.
    searches_made : bool
        Forbidden with standard verification: choose the budget for the drafts that exist in the end.
    """

    score: Score
    num_speculative_tokens: int
    verify_costs: tuple[float, ...]
    draft_costs: tuple[float, ...]
    expected: tuple[float, ...]
    first: Rows | None = None
    probe_every: int = 0
    stops_while_trimming: bool = False
    searches_made: bool = False

    def start(self, num_requests: int) -> Memory:
        """Memory before the first round."""
        nothing = ((NOT_DRAFTED,) * self.num_speculative_tokens,) * num_requests
        return Memory(self.first or nothing, self.score.start(), 0)

    def admit(self, memory: Memory, blocks: tuple[Block, ...]) -> tuple[int, ...]:
        """Drafts verified, by request."""
        return self._decide(memory, blocks).admitted

    def remember(self, memory: Memory, blocks: tuple[Block, ...], admitted: Any, accepted: Any) -> Memory:
        """Memory for the next round."""
        made = self._decide(memory, blocks).made
        missing = (NOT_DRAFTED,) * self.num_speculative_tokens
        last = tuple((*row[:made], *missing[len(row[:made]) :]) for row in self._confidences(memory, blocks))
        number = (memory.number + 1) % max(1, self.probe_every)
        return Memory(last, self.score.learn(memory.state, blocks, admitted, accepted), number)

    def _confidences(self, memory: Memory, blocks: tuple[Block, ...]) -> Rows:
        return tuple(self.score.confidences(memory.state, block) for block in blocks)

    def _decide(self, memory: Memory, blocks: tuple[Block, ...]) -> Outcome:
        probes = self.probe_every > 0 and memory.number == self.probe_every - 1
        return _decide(self, probes, memory.last, self._confidences(memory, blocks))


@lru_cache(maxsize=1 << 16)
def _decide(rule: DepthRule, probes: bool, last: Rows, confidences: Rows) -> Outcome:
    round_ = _Round(rule, last, confidences)
    if probes:
        return round_.verify(rule.num_speculative_tokens, round_.everything)
    chosen = round_.choose()
    depth, budget = int(chosen.depth), chosen.budget
    leaves_out = int(budget) < round_.drafts_to(depth)
    if depth and not leaves_out:
        # nothing that is drafted will be left out, so a block may go deeper than expected, or end before
        depth, budget = rule.num_speculative_tokens, round_.everything
    may_stop = depth > 0 and (rule.stops_while_trimming or not leaves_out)
    made = round_.made(depth, chosen.rate, leaves_out) if may_stop else depth
    return round_.verify(made, round_.budget_over(made) if rule.searches_made else budget)


class _Round:
    """One round's numbers as tensors."""

    def __init__(self, rule: DepthRule, last: Rows, confidences: Rows) -> None:
        K = rule.num_speculative_tokens
        self.rule = rule
        self.num_drafts = torch.tensor([len(row) for row in confidences])
        self.live = torch.tensor([[*row, *[0.0] * (K - len(row))] for row in confidences])
        self.sampling = (self.num_drafts > 0).sum()
        self.everything = self.num_drafts.sum()
        rows = torch.tensor(last)
        expected = torch.where(rows == NOT_DRAFTED, torch.tensor(rule.expected), rows)
        unusable = torch.arange(K) >= self.num_drafts[:, None]
        self.expected = survival(expected, self.num_drafts).masked_fill(unusable, -1.0)
        draft = torch.tensor(rule.draft_costs, dtype=torch.float64)[:, None].expand(-1, len(last) + 1)
        verify = torch.tensor((rule.verify_costs[0], *rule.verify_costs), dtype=torch.float64)
        self.costs = MaterializedCosts(draft.contiguous(), verify)

    def choose(self) -> Any:
        return choose_depth(self.expected, *(self.sampling,) * 3, self.costs, self.everything)

    def drafts_to(self, depth: int) -> int:
        return int(self.num_drafts.clamp(max=depth).sum())

    def made(self, depth: int, rate: Tensor, trims_later: bool) -> int:
        """Positions drafted before the batch stops; looks at no confidence beyond the last one drafted."""
        for made in range(1, depth):
            alive = survival(self.live[:, :made], self.num_drafts)[:, -1]
            alive = torch.where(self.num_drafts > made, alive, 0.0)
            draft_ms = self.costs.draft[made + 1, 0] - self.costs.draft[made, 0]
            tokens = [int(self.sampling) + self.drafts_to(d) for d in (made, made + 1)]
            before, after = self.costs.verify[tokens]
            following = torch.tensor(self.rule.expected[made])
            if not worth_another_pass(alive, following, rate, draft_ms, after - before, trims_later):
                return made
        return depth

    def budget_over(self, made: int) -> Tensor:
        """The forbidden budget: for what was made."""
        existing = self.expected.clone()
        existing[:, made:] = -1.0
        most = self.num_drafts.clamp(max=made).sum()
        return choose_budget(existing, *(self.sampling,) * 3, self.costs, most, torch.tensor(made))

    def verify(self, made: int, budget: Tensor) -> Outcome:
        num_made = self.num_drafts.clamp(max=made)
        return Outcome(made, tuple(by_survival(self.live, num_made, budget).tolist()))
