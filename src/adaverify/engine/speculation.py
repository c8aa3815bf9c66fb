"""One round of speculation: the budget, the drafts, which of them are verified, and what is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from adaverify.config import SpeculativeConfig
from adaverify.drafters.base import DraftBlock, Drafter
from adaverify.engine.depth import DepthPlanner, DraftChoice
from adaverify.engine.request import Request
from adaverify.engine.scheduler import StepPlan
from adaverify.engine.timing import backlog_tokens, step_size
from adaverify.errors import ConfigError
from adaverify.policy.acceptance import AcceptanceEstimator
from adaverify.policy.budget import choose_budget
from adaverify.policy.cost import CostTable, MaterializedCosts
from adaverify.policy.estimator import OnlineAcceptanceEstimator
from adaverify.policy.live_costs import LiveCosts
from adaverify.policy.probing import ProbeSchedule
from adaverify.policy.requests import RequestRows
from adaverify.policy.robust import COUPLED, STANDARD, RobustEstimator
from adaverify.policy.shared_slopes import SharedSlopesEstimator
from adaverify.policy.step import StepSize, StepTime
from adaverify.policy.survival import admit, survival, valid_prefix

# what coupled verification believes of log-odds and margin before the first label
COUPLED_SLOPES, COUPLED_INTERCEPT = (0.45, 0.2), -0.7


@dataclass(frozen=True)
class Round:
    """The drafts of one step and what was decided about them.

    Attributes
    ----------
    block : DraftBlock
    requests : RequestRows
        The R decodes.
    features : Tensor [R, K]
        Of the block, widened with nan to K positions.
    inputs : Tensor [R, K] or [R, K, 2]
        What the estimator reads: the features, with coupled verification beside the margins.
    confidences : Tensor [R, K]
        Predicted chance that each draft is accepted, given that the ones before it were.
    num_drafts : Tensor [R], int64
        Drafts that each request can use, up to the first whose distribution is not finite.
    admitted : Tensor [R], int64
        How many of them, from the first on, are verified.
    budget : Tensor, int64
        Drafts that the whole batch was allowed.
    """

    block: DraftBlock
    requests: RequestRows
    features: Tensor
    inputs: Tensor
    confidences: Tensor
    num_drafts: Tensor
    admitted: Tensor
    budget: Tensor


class Speculation:
    """A drafter and the policy that decides how much of its work is verified.

    Parameters
    ----------
    config : SpeculativeConfig
    drafter : Drafter
    max_num_seqs, max_num_batched_tokens : int
        Largest batch, for the cost tables.
    device : torch.device
        Where drafts and confidences live.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        drafter: Drafter,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        device: torch.device,
    ) -> None:
        self.num_speculative_tokens = config.num_speculative_tokens
        self.adaptive = config.enable_adaptive_verification
        self.coupled = config.rejection_sample_method == "coupled"
        self.drafter = drafter
        self.drafter.coupled = self.coupled
        self.device = device
        self.estimator = _estimator(config, max_num_seqs, device)
        self.reads_head = _reads_head(config, drafter)
        self.cost_table: CostTable | None = None
        self.costs: MaterializedCosts | None = None
        self.live_costs: LiveCosts | None = None
        self._trims_by_live_costs = config.live_costs
        self._limits = (max_num_seqs, max_num_batched_tokens)
        self._stale = torch.ones(max_num_seqs, config.num_speculative_tokens, device=device)
        self.probes = ProbeSchedule() if config.estimator == "robust" else None
        self.depth_planner = self._depth_planner() if config.adapts_draft_depth else None

    @property
    def chooses_depth(self) -> bool:
        """Whether each step chooses how deep to draft; where everything is verified, everything is drafted, too."""
        return self.depth_planner is not None and self.adaptive and self.costs is not None

    def set_costs(self, table: CostTable) -> None:
        """Trim by these measured costs, and by what steps really take, from now on; without, verify every draft."""
        max_requests, max_tokens = self._limits
        self.cost_table = table
        self.live_costs = LiveCosts(table, max_requests, max_tokens, self.num_speculative_tokens)
        self.costs = table.materialize(max_requests, max_tokens, self.device, self.num_speculative_tokens)

    def learn_costs(self, size: StepSize, time: StepTime) -> None:
        """A step is over; the next budget may depend on how long it took."""
        if self.live_costs is not None:
            self.live_costs.observe(size, time)

    def start_requests(self, requests: Sequence[Request]) -> None:
        """New requests have their slots: until their first drafts are scored they count as the estimator expects.

        With a head they count as certain, as in the paper.
        """
        if requests:
            rows = self._rows(requests)
            self.estimator.start(rows.slot)
            self._stale[rows.slot] = 1.0 if self.reads_head else self.estimator.expected(rows.greedy)
            if self.depth_planner is not None:
                for request in requests:
                    self.depth_planner.start_request(request.slot)

    @torch.inference_mode()
    def choose(self, plan: StepPlan) -> DraftChoice:
        """Depth and budget before any draft of this step is drawn; the budget may be left to wait for confidences.

        With standard verification, and later draft distributions that depend on earlier draws, only the confidences of
        each request's previous block may be used. With coupled verification no choice of drafts changes the text.
        """
        if self.chooses_depth:
            assert self.depth_planner is not None
            return self.depth_planner.choose(plan, partial(self._costs_of, plan))
        depth = max(plan.num_drafts, default=0) if plan.max_draft_budget > 0 else 0
        return DraftChoice(depth, None if self._budget_may_wait else self._budget(plan))

    def draft(self, plan: StepPlan, choice: DraftChoice) -> DraftBlock:
        """Draft for every decode of the plan, as deep as was chosen or until a block turns out not to pay."""
        if choice.go_on is None:
            return self.drafter.propose(plan.decodes, plan.chunks, choice.depth)
        return self.drafter.propose(plan.decodes, plan.chunks, choice.depth, choice.go_on)

    @torch.inference_mode()
    def admit(self, plan: StepPlan, block: DraftBlock, budget: Tensor | None) -> Round | None:
        """Score the drafts and admit the best; None if nothing was drafted."""
        if block.depth == 0:
            return None
        rows, num_drafts = self._rows(plan.decodes), self._num_drafts(plan)
        features = self._pad(block.features, torch.nan)
        inputs = features
        if self.coupled:
            assert block.margin is not None
            inputs = torch.stack((features, self._pad(block.margin, torch.nan)), dim=-1)
        confidences = self._confidences(rows, block, features, inputs)
        self._stale[rows.slot] = confidences.nan_to_num(0.0)
        if self.chooses_depth:
            assert self.depth_planner is not None
            self.depth_planner.observe(plan, confidences, block.depth)
        if budget is None:
            budget = self._budget(plan, block.depth)
        valid = valid_prefix(confidences, num_drafts)
        admitted = admit(survival(confidences, num_drafts), valid, budget)
        return Round(block, rows, features, inputs, confidences, valid, admitted, budget)

    def _budget(self, plan: StepPlan, depth: int | None = None) -> Tensor:
        """The budget, from the confidences of each request's latest scored block; ``depth`` that of the present one."""
        limit = self._scalar(plan.max_draft_budget)
        if not self.adaptive or self.costs is None:
            return limit
        num_drafts = self._num_drafts(plan)
        stale = survival(self._stale[self._rows(plan.decodes).slot], num_drafts)
        positions = torch.arange(self.num_speculative_tokens, device=self.device)
        stale = stale.masked_fill(positions >= num_drafts[:, None], -1.0)
        costs = self._costs_of(plan)
        budget = choose_budget(
            stale,
            num_sampling=self._scalar(plan.num_sampling),
            num_requests=self._scalar(len(plan.decodes)),
            num_non_draft=self._scalar(plan.num_non_draft_tokens),
            costs=costs,
            max_budget=limit,
            depth=self._scalar(self.num_speculative_tokens if depth is None else depth),
        )
        return limit if self._probes_now(plan, budget, costs) else budget

    def _probes_now(self, plan: StepPlan, budget: Tensor, costs: MaterializedCosts) -> bool:
        """Whether this step verifies everything, so that labels never run dry; lengths and stale budgets decide.

        Where depth is chosen, the probes of that choice label every position already.
        """
        if self.probes is None or self.chooses_depth:
            return False
        drafts = torch.stack((torch.zeros_like(budget), budget, self._scalar(plan.max_draft_budget)))
        tokens = (drafts + plan.num_non_draft_tokens).clamp(max=len(costs.verify) - 1)
        none, chosen, everything = costs.verify.take(tokens).tolist()
        return self.probes.is_due(everything - none, chosen + float(costs.draft[-1, len(plan.decodes)]))

    def _costs_of(self, plan: StepPlan) -> MaterializedCosts:
        """What steps of this plan cost, by lengths and by what was measured before it."""
        assert self.costs is not None
        if self.live_costs is None or not self._trims_by_live_costs:
            return self.costs
        return self.live_costs.at(step_size(plan, backlog=backlog_tokens(plan)), self.device)

    @torch.inference_mode()
    def observe(
        self,
        current: Round,
        num_accepted: Sequence[int],
        telling: Sequence[bool],
        within: Sequence[int] | None = None,
    ) -> None:
        """Learn from a verified round. A confidence head learns nothing.

        ``telling`` says whose labels count, ``within`` how many of their drafts lie before the end of their text: all
        of them if it is not given.
        """
        if self.reads_head:
            return
        ends = current.admitted if within is None else torch.tensor(within, dtype=torch.long, device=self.device)
        self.estimator.observe(
            current.inputs,
            current.confidences,
            torch.minimum(current.admitted, ends),
            torch.tensor(num_accepted, dtype=torch.long, device=self.device).minimum(ends),
            mask=torch.tensor(telling, dtype=torch.bool, device=self.device),
            requests=current.requests,
        )

    def end_step(self) -> None:
        """Count the step; the estimator refits after so many."""
        self.estimator.end_step()

    @property
    def _budget_may_wait(self) -> bool:
        return self.coupled or self.drafter.knows_q_before_draw

    def _depth_planner(self) -> DepthPlanner:
        return DepthPlanner(
            self.num_speculative_tokens,
            self._limits[0],
            self.device,
            in_parallel=self.drafter.drafts_in_parallel,
            budget_may_wait=self._budget_may_wait,
            confidence_at=self._confidence_at,
            # costs that are not corrected learn nothing from a step without drafts
            pauses=None if self._trims_by_live_costs else ProbeSchedule(0.0),
        )

    def _confidence_at(self, plan: StepPlan, features: Tensor, margins: Tensor | None, position: int) -> Tensor:
        """Confidences [R] of the drafts of one position, while later ones are still to be drafted."""
        inputs = features if margins is None else torch.stack((features, margins), dim=-1)
        return self.estimator.predict_at(inputs, position, self._rows(plan.decodes))

    def _confidences(self, requests: RequestRows, block: DraftBlock, features: Tensor, inputs: Tensor) -> Tensor:
        """Chance of acceptance of each draft [R, K], given that the ones before it are accepted."""
        if not self.reads_head:
            return self.estimator.predict(inputs, requests)
        assert block.confidence is not None
        # the head reads the network's state: where the draft law is not finite there is nothing to be confident of
        return self._pad(block.confidence.sigmoid(), torch.nan).where(features.isfinite(), torch.nan)

    def _pad(self, values: Tensor, fill: float) -> Tensor:
        """Widen [R, depth] to [R, K]: blocks may be shallower near a request's end."""
        missing = self.num_speculative_tokens - values.shape[1]
        return torch.nn.functional.pad(values, (0, missing), value=fill) if missing else values

    def _num_drafts(self, plan: StepPlan) -> Tensor:
        return torch.tensor(plan.num_drafts, dtype=torch.long, device=self.device)

    def _rows(self, requests: Sequence[Request]) -> RequestRows:
        slots = torch.tensor([request.slot for request in requests], dtype=torch.long, device=self.device)
        greedy = torch.tensor([request.params.is_greedy for request in requests], dtype=torch.bool, device=self.device)
        return RequestRows(slots, greedy)

    def _scalar(self, value: int) -> Tensor:
        return torch.tensor(value, dtype=torch.long, device=self.device)


def _estimator(config: SpeculativeConfig, max_num_seqs: int, device: torch.device) -> AcceptanceEstimator:
    """The one asked for; with coupled verification, one that reads the margins too."""
    K = config.num_speculative_tokens
    coupled = config.rejection_sample_method == "coupled"
    if config.estimator == "robust":
        return RobustEstimator(K, max_num_seqs, COUPLED if coupled else STANDARD, device=device)
    if coupled:
        return SharedSlopesEstimator(K, COUPLED_SLOPES, COUPLED_INTERCEPT, device=device)
    return OnlineAcceptanceEstimator(K, device=device)


def _reads_head(config: SpeculativeConfig, drafter: Drafter) -> bool:
    """Whether confidences come from the drafter's own head: as the paper does, if it has one."""
    if config.draft_confidence == "head" and not drafter.has_confidence_head:
        raise ConfigError(
            f"draft_confidence 'head' was asked for, but the drafter {config.model!r} has no confidence head; "
            "use 'estimator' or 'auto'"
        )
    return drafter.has_confidence_head and config.draft_confidence != "estimator"
