"""Draft only what may be verified: how deep a step drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from adaverify.drafters.base import GoOn
from adaverify.engine.early_stop import EarlyStop
from adaverify.engine.scheduler import StepPlan
from adaverify.policy.cost import MaterializedCosts
from adaverify.policy.depth import DepthChoice, choose_depth
from adaverify.policy.outlook import Outlook
from adaverify.policy.probing import ProbeSchedule
from adaverify.policy.survival import survival

# A step without drafts, now and then, tells what it takes: where all steps draft, costs are only known of such steps,
# and what the first draft adds would be believed for ever. It may cost this share of the time, and comes at most once
# in so many steps.
PAUSE_SHARE, PAUSE_EVERY = 0.0025, 8
# Where nothing is drafted nothing is learned, and nothing but slowly corrected costs can make the next like step choose
# otherwise: so many of them go by before it is asked again. Asking takes nearly a millisecond.
REST_STEPS = 8

# plan, features [R], margins [R] or None, position from 0: confidences [R]
ConfidenceAt = Callable[[StepPlan, Tensor, Tensor | None, int], Tensor]


@dataclass(frozen=True)
class DraftChoice:
    """What a step drafts, decided before any of its drafts is drawn.

    Attributes
    ----------
    depth : int
        Drafts for each request at most; 0 to draft nothing.
    budget : Tensor, int64, optional
        Drafts that the whole batch may verify. None if it may wait for the confidences of the block.
    go_on : callable, optional
        Asked after each draft whether the batch shall draft on.
    """

    depth: int
    budget: Tensor | None
    go_on: GoOn | None = None


@dataclass
class Rest:
    """Like steps behind one in which drafting did not pay, all requests being average ones.

    Attributes
    ----------
    plan : tuple
        What the choice mostly depended on.
    price_ms, cost : float
        Milliseconds of drafting and verifying everything, and of the step without.
    steps : int
        How many may still go by.
    """

    plan: tuple[object, ...]
    price_ms: float
    cost: float
    steps: int = REST_STEPS


class DepthPlanner:
    """Chooses depth and budget of each step together, and ends blocks that turn out badly.

    Early stopping looks at the present block, so with standard verification it may only decide what is drafted next,
    never which of the earlier drafts are verified. It therefore happens only where the stale budget leaves nothing
    out: then all that is drafted is verified, and a deeper draft takes no other's place. Where drafts compete for a
    smaller budget, all are drafted to the chosen depth. With coupled verification either is allowed.

    Parameters
    ----------
    num_speculative_tokens : int
        K.
    max_num_seqs : int
        Slots of requests.
    device : torch.device
    in_parallel : bool
        A block is one pass: how deep it is must be said before, and nothing ends it early.
    budget_may_wait : bool
        The budget may look at the confidences of the block.
    confidence_at : callable
    probes : ProbeSchedule, optional
        Of steps that draft and verify everything.
    pauses : ProbeSchedule, optional
        Of steps that draft nothing where drafting seems to pay.
    """

    def __init__(
        self,
        num_speculative_tokens: int,
        max_num_seqs: int,
        device: torch.device,
        in_parallel: bool,
        budget_may_wait: bool,
        confidence_at: ConfidenceAt,
        probes: ProbeSchedule | None = None,
        pauses: ProbeSchedule | None = None,
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.device = device
        self.in_parallel = in_parallel
        self.budget_may_wait = budget_may_wait
        self.confidence_at = confidence_at
        self.probes = probes or ProbeSchedule()
        self.pauses = pauses or ProbeSchedule(PAUSE_SHARE)
        self.outlook = Outlook(num_speculative_tokens, device)
        # confidences of each slot's block of the step before; nan where nothing was drafted
        self._last = torch.full((max_num_seqs, num_speculative_tokens), torch.nan, device=device)
        self._before = self._last[:0]
        self._all_average = False
        self._rest: Rest | None = None

    def start_request(self, slot: int) -> None:
        """A new request has this slot; until its first block it counts as an average one."""
        self._last[slot] = torch.nan

    def choose(self, plan: StepPlan, costs: Callable[[], MaterializedCosts]) -> DraftChoice:
        """What to draft in this step; ``costs`` are asked for where they are needed."""
        nothing = DraftChoice(0, self._scalar(0))
        if self._rests(plan):
            assert self._rest is not None
            probes = self.probes.is_due(self._rest.price_ms, self._rest.cost)
            return self._everything(plan) if probes and self._deepest_that_fits(plan) else nothing
        average, self._all_average, self._rest = self._all_average, True, None
        slots = self._slots(plan)
        self._before = self._last[slots]
        # a block tells of the next step only: without new drafts a request counts as an average one again
        self._last[slots] = torch.nan
        deepest = max(plan.num_drafts, default=0)
        if plan.max_draft_budget == 0 or deepest == 0:
            return nothing
        num_drafts = torch.tensor(plan.num_drafts, device=self.device)
        table = costs()
        chosen = self._choose(plan, num_drafts, table)
        price = self._price_of_everything(plan, table)
        # the one place where the host waits: how often a model runs cannot be decided on the device
        deepest_for_it = _deepest_at_the_price(chosen.depth, table.draft[:, len(plan.decodes)])
        pause = chosen.undrafted_cost - plan.num_sampling / chosen.rate
        parts = (chosen.depth, deepest_for_it, chosen.budget, chosen.cost, price, pause)
        depth, no_dearer, budget, cost, price_ms, pause_ms = torch.stack([part.double() for part in parts]).tolist()
        everything = self._everything(plan)
        if everything.depth and self.probes.is_due(price_ms, cost):
            return everything
        if depth == 0 and average:
            self._rest = Rest(_choice_depends_on(plan), price_ms, cost)
        if depth == 0 or self._pauses_now(pause_ms, cost):
            return nothing
        if self.in_parallel:
            return DraftChoice(min(int(no_dearer), deepest), None if self.budget_may_wait else chosen.budget)
        if self.budget_may_wait:
            return DraftChoice(deepest, None, self._early_stop(plan, num_drafts, chosen.rate, table, trims_later=True))
        if budget < _drafts_to(plan, int(depth)):
            return DraftChoice(min(int(depth), deepest), chosen.budget)
        go_on = self._early_stop(plan, num_drafts, chosen.rate, table, trims_later=False)
        return DraftChoice(everything.depth, everything.budget, go_on)

    def observe(self, plan: StepPlan, confidences: Tensor, depth: int) -> None:
        """Learn from the step's block, of ``depth`` drafts a request, whose confidences are given [R, K]."""
        self._all_average, self._rest = False, None
        num_drafts = torch.tensor(plan.num_drafts, device=self.device).clamp(max=depth)
        drafted = torch.arange(self.num_speculative_tokens, device=self.device) < num_drafts[:, None]
        self.outlook.observe(self._before, confidences, drafted)
        self._last[self._slots(plan)] = torch.where(drafted, confidences.nan_to_num(0.0), torch.nan)

    def _rests(self, plan: StepPlan) -> bool:
        """Whether the choice of a like step before this one still holds."""
        rest = self._rest
        if rest is None or rest.steps == 0 or rest.plan != _choice_depends_on(plan):
            return False
        rest.steps -= 1
        return True

    def _everything(self, plan: StepPlan) -> DraftChoice:
        return DraftChoice(self._deepest_that_fits(plan), self._scalar(plan.max_draft_budget))

    def _choose(self, plan: StepPlan, num_drafts: Tensor, costs: MaterializedCosts) -> DepthChoice:
        scenarios = self.outlook.scenarios(self._before)
        expected = survival(scenarios.flatten(0, 1), num_drafts.repeat(len(scenarios)))
        return choose_depth(
            expected.view_as(scenarios),
            num_sampling=self._scalar(plan.num_sampling),
            num_requests=self._scalar(len(plan.decodes)),
            num_non_draft=self._scalar(plan.num_non_draft_tokens),
            costs=costs,
            max_budget=self._scalar(plan.max_draft_budget),
        )

    def _price_of_everything(self, plan: StepPlan, costs: MaterializedCosts) -> Tensor:
        """Milliseconds of drafting to depth K and verifying all of it, beyond a step without drafts."""
        tokens = torch.tensor([0, plan.max_draft_budget], device=self.device) + plan.num_non_draft_tokens
        without, with_all = costs.verify.take(tokens.clamp(max=len(costs.verify) - 1))
        return costs.draft[-1, len(plan.decodes)] + with_all - without

    def _pauses_now(self, price_ms: float, cost: float) -> bool:
        """Whether a step that pays to draft in shall not; ``price_ms`` is what its tokens would have taken less."""
        return self.pauses.is_due(max(price_ms, PAUSE_EVERY * self.pauses.share * cost), cost)

    def _early_stop(
        self, plan: StepPlan, num_drafts: Tensor, rate: Tensor, costs: MaterializedCosts, trims_later: bool
    ) -> EarlyStop:
        totals = [_drafts_to(plan, depth) for depth in range(self.num_speculative_tokens + 1)]
        tokens = torch.tensor(totals, device=self.device) + plan.num_non_draft_tokens
        return EarlyStop(
            confidence_at=partial(self.confidence_at, plan),
            num_drafts=num_drafts,
            expected=self.outlook.mean,
            rate=rate,
            draft_ms=costs.draft[:, len(plan.decodes)].diff(),
            verify_ms=costs.verify.take(tokens.clamp(max=len(costs.verify) - 1)).diff(),
            trims_later=trims_later,
        )

    def _deepest_that_fits(self, plan: StepPlan) -> int:
        """The deepest drafting of which everything can be verified."""
        if sum(plan.num_drafts) <= plan.max_draft_budget:
            return max(plan.num_drafts)
        depths = range(max(plan.num_drafts) + 1)
        return max(depth for depth in depths if _drafts_to(plan, depth) <= plan.max_draft_budget)

    def _slots(self, plan: StepPlan) -> Tensor:
        return torch.tensor([request.slot for request in plan.decodes], dtype=torch.long, device=self.device)

    def _scalar(self, value: int) -> Tensor:
        return torch.tensor(value, dtype=torch.long, device=self.device)


def _deepest_at_the_price(depth: Tensor, draft_ms: Tensor) -> Tensor:
    """The deepest drafting that costs what ``depth`` does, so that there is more to choose from.

    ``draft_ms`` [K + 1] never falls.
    """
    return (draft_ms <= draft_ms.take(depth)).sum() - 1


def _choice_depends_on(plan: StepPlan) -> tuple[object, ...]:
    """What mostly decides whether drafts for average requests pay: how many there are, and whether prompts are read."""
    return len(plan.decodes), bool(plan.chunks)


def _drafts_to(plan: StepPlan, depth: int) -> int:
    """Drafts of the whole batch that can be used if all draft to ``depth``."""
    return sum(min(count, depth) for count in plan.num_drafts)
