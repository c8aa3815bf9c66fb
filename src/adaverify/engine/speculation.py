"""One round of speculation: the budget, the drafts, which of them are verified, and what is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaverify.config import SpeculativeConfig
from adaverify.drafters.base import DraftBlock, Drafter
from adaverify.engine.scheduler import StepPlan
from adaverify.engine.timing import step_size
from adaverify.errors import ConfigError
from adaverify.policy.budget import choose_budget
from adaverify.policy.cost import CostTable, MaterializedCosts
from adaverify.policy.estimator import OnlineAcceptanceEstimator
from adaverify.policy.live_costs import LiveCosts
from adaverify.policy.shared_slopes import SharedSlopesEstimator
from adaverify.policy.step import StepSize, StepTime
from adaverify.policy.survival import admit, survival, valid_prefix

AcceptanceEstimator = OnlineAcceptanceEstimator | SharedSlopesEstimator
# what coupled verification believes of log-odds and margin before the first label
COUPLED_SLOPES, COUPLED_INTERCEPT = (0.45, 0.2), -0.7


@dataclass(frozen=True)
class Round:
    """The drafts of one step and what was decided about them.

    Attributes
    ----------
    block : DraftBlock
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
        self.estimator = _estimator(config, device)
        self.reads_head = _reads_head(config, drafter)
        self.cost_table: CostTable | None = None
        self.costs: MaterializedCosts | None = None
        self.live_costs: LiveCosts | None = None
        self._trims_by_live_costs = config.live_costs
        self._limits = (max_num_seqs, max_num_batched_tokens)
        self._stale = torch.ones(max_num_seqs, config.num_speculative_tokens, device=device)

    def set_costs(self, table: CostTable) -> None:
        """Trim by these measured costs, and by what steps really take, from now on; without, verify every draft."""
        max_requests, max_tokens = self._limits
        self.cost_table = table
        self.live_costs = LiveCosts(table, max_requests, max_tokens)
        self.costs = table.materialize(max_requests, max_tokens, device=self.device)

    def learn_costs(self, size: StepSize, time: StepTime) -> None:
        """A step is over; the next budget may depend on how long it took."""
        if self.live_costs is not None:
            self.live_costs.observe(size, time)

    def start_request(self, slot: int) -> None:
        """A new request has this slot: as in the paper, it counts as certain until its first drafts are scored."""
        self._stale[slot] = 1.0

    @torch.inference_mode()
    def choose(self, plan: StepPlan) -> Tensor | None:
        """The draft budget before any draft of this step is drawn, or None if it may wait for their confidences.

        With standard verification, and later draft distributions that depend on earlier draws, only the confidences of
        each request's previous block may be used. With coupled verification no choice of drafts changes the text.
        """
        return None if self.coupled or self.drafter.knows_q_before_draw else self._budget(plan)

    def draft(self, plan: StepPlan) -> DraftBlock:
        """Draft for every decode of the plan, as deep as any of them can use."""
        depth = max(plan.num_drafts, default=0) if plan.max_draft_budget > 0 else 0
        return self.drafter.propose(plan.decodes, plan.chunks, depth)

    @torch.inference_mode()
    def admit(self, plan: StepPlan, block: DraftBlock, budget: Tensor | None) -> Round | None:
        """Score the drafts and admit the best; None if nothing was drafted."""
        if block.depth == 0:
            return None
        slots, num_drafts = self._slots(plan), self._num_drafts(plan)
        features = self._pad(block.features, torch.nan)
        inputs = features
        if self.coupled:
            assert block.margin is not None
            inputs = torch.stack((features, self._pad(block.margin, torch.nan)), dim=-1)
        confidences = self._confidences(block, features, inputs)
        self._stale[slots] = confidences.nan_to_num(0.0)
        if budget is None:
            budget = self._budget(plan)
        valid = valid_prefix(confidences, num_drafts)
        admitted = admit(survival(confidences, num_drafts), valid, budget)
        return Round(block, features, inputs, confidences, valid, admitted, budget)

    def _budget(self, plan: StepPlan) -> Tensor:
        """The budget, from the confidences of each request's latest scored block."""
        limit = self._scalar(plan.max_draft_budget)
        if not self.adaptive or self.costs is None:
            return limit
        num_drafts = self._num_drafts(plan)
        stale = survival(self._stale[self._slots(plan)], num_drafts)
        positions = torch.arange(self.num_speculative_tokens, device=self.device)
        stale = stale.masked_fill(positions >= num_drafts[:, None], -1.0)
        return choose_budget(
            stale,
            num_sampling=self._scalar(plan.num_sampling),
            num_requests=self._scalar(len(plan.decodes)),
            num_non_draft=self._scalar(plan.num_non_draft_tokens),
            costs=self._costs_of(plan),
            max_budget=limit,
        )

    def _costs_of(self, plan: StepPlan) -> MaterializedCosts:
        """What steps of this plan cost, by lengths and by what was measured before it."""
        assert self.costs is not None
        if self.live_costs is None or not self._trims_by_live_costs:
            return self.costs
        return self.live_costs.at(step_size(plan), self.device)

    @torch.inference_mode()
    def observe(self, current: Round, num_accepted: Sequence[int], telling: Sequence[bool]) -> None:
        """Learn from a verified round; ``telling`` says whose labels count. A confidence head learns nothing."""
        if self.reads_head:
            return
        self.estimator.observe(
            current.inputs,
            current.confidences,
            current.admitted,
            torch.tensor(num_accepted, dtype=torch.long, device=self.device),
            mask=torch.tensor(telling, dtype=torch.bool, device=self.device),
        )

    def end_step(self) -> None:
        """Count the step; the estimator refits after so many."""
        self.estimator.end_step()

    def _confidences(self, block: DraftBlock, features: Tensor, inputs: Tensor) -> Tensor:
        """Chance of acceptance of each draft [R, K], given that the ones before it are accepted."""
        if not self.reads_head:
            return self.estimator.predict(inputs)
        assert block.confidence is not None
        # the head reads the network's state: where the draft law is not finite there is nothing to be confident of
        return self._pad(block.confidence.sigmoid(), torch.nan).where(features.isfinite(), torch.nan)

    def _pad(self, values: Tensor, fill: float) -> Tensor:
        """Widen [R, depth] to [R, K]: blocks may be shallower near a request's end."""
        missing = self.num_speculative_tokens - values.shape[1]
        return torch.nn.functional.pad(values, (0, missing), value=fill) if missing else values

    def _num_drafts(self, plan: StepPlan) -> Tensor:
        return torch.tensor(plan.num_drafts, dtype=torch.long, device=self.device)

    def _slots(self, plan: StepPlan) -> Tensor:
        return torch.tensor([request.slot for request in plan.decodes], dtype=torch.long, device=self.device)

    def _scalar(self, value: int) -> Tensor:
        return torch.tensor(value, dtype=torch.long, device=self.device)


def _estimator(config: SpeculativeConfig, device: torch.device) -> AcceptanceEstimator:
    """That of the paper; with coupled verification, one that reads the margins too."""
    K = config.num_speculative_tokens
    if config.rejection_sample_method == "coupled":
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
