"""The upper bound: a policy that knows what will be accepted."""

from __future__ import annotations

import numpy as np

from adaverify.errors import ConfigError
from adaverify.lab.replay.policies.base import Decision, Policy, Setting, Stretch
from adaverify.lab.replay.policies.cheapest import ChainDrafting, Drafting, ParallelDrafting
from adaverify.lab.trace.trace import Floats, Ints


class Clairvoyant(Policy):
    """Drafts and verifies accepted drafts only, and of those only what pays.

    It maximises tokens / cost of all steps together, which is not the maximum of each: at the best rate L, every step
    maximises tokens - L cost, and L is found by repetition (Dinkelbach, "On nonlinear fractional programming", 1967).
    No policy can do better on the same rounds at the same prices. It cannot be played with prompts: those come by what
    is decoded, and what would be decoded best would depend on them.
    """

    name = "clairvoyant"
    lossless = False
    attainable = False
    heeds_prompts = True

    def __init__(self, setting: Setting) -> None:
        self._num_accepted = setting.rounds.num_accepted
        self._prices = setting.prices

    def decide(self, stretch: Stretch) -> Decision:
        """Decide all steps at once."""
        if stretch.reading is not None:
            raise ConfigError("the clairvoyant is no bound where prompts are read; play it on traffic without them")
        accepted = np.where(stretch.active, self._num_accepted[stretch.rounds], 0)
        drafting = self._drafting(accepted)
        tokens = stretch.num_requests[:, None] + np.arange(drafting.cost.shape[1])
        cost = drafting.cost + self._prices.verify_ms(tokens)
        budget = _best_budgets(tokens, cost)
        depth = drafting.depths(budget)
        return Decision(depth, depth, budget)

    def _drafting(self, accepted: Ints) -> Drafting:
        prices = self._prices
        if prices.drafts_in_parallel:
            return ParallelDrafting(accepted, prices.draft_passes[0])
        return ChainDrafting(accepted, prices.draft_passes)


def _best_budgets(tokens: Ints, cost: Floats) -> Ints:
    """Column of each step, int64 [T], by which the sum of ``tokens`` over that of ``cost``, both [T, B], is largest."""
    steps = np.arange(len(tokens))
    budget = np.zeros(len(tokens), dtype=np.int64)
    rate = 0.0
    while (better := tokens[steps, budget].sum() / cost[steps, budget].sum()) > rate:
        rate = better
        budget = (tokens - rate * cost).argmax(axis=1)
    return budget
