"""Adaptive verification as the server does it: the engine's own decisions, fed with recorded drafts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from adaverify.config import SpeculativeConfig
from adaverify.drafters.base import DraftBlock, Drafter
from adaverify.engine.depth import DraftChoice
from adaverify.engine.request import Request
from adaverify.engine.scheduler import PrefillChunk, StepPlan
from adaverify.engine.speculation import Round, Speculation
from adaverify.lab.replay.policies.base import Coefficients, Decision, Policy, Setting, Stretch
from adaverify.lab.trace.trace import Ints


class Served(Policy):
    """Chooses depth and budget of each step, ends blocks early, admits, learns and probes by the engine's code.

    What the engine knows and a trace does not is left out: margins of coupled drafts, and costs corrected as it serves.

    Parameters
    ----------
    setting : Setting
    """

    name = "av"
    steps_ahead = 1
    heeds_prompts = True

    def __init__(self, setting: Setting) -> None:
        self._drafter = _recorded_drafter(setting)
        has_head = self._drafter.has_confidence_head
        config = SpeculativeConfig(
            method="draft_model",
            model=setting.rounds.info.drafter,
            num_speculative_tokens=setting.num_speculative_tokens,
            enable_adaptive_verification=True,
            live_costs=False,
            draft_confidence="head" if has_head else "estimator",
        )
        tables = setting.prices.tables
        limits = tables.draft.shape[1] - 1, tables.verify.shape[0] - 1
        self._speculation = Speculation(config, cast(Drafter, self._drafter), *limits, torch.device("cpu"))
        self._speculation.costs = tables
        self._current: Round | None = None

    @property
    def coefficients(self) -> Coefficients | None:
        """The estimator's fit; None where the drafter's head is read."""
        if self._speculation.reads_head:
            return None
        fit = self._speculation.estimator
        return Coefficients(fit.num_refits, float(fit.slope), tuple(fit.intercepts.tolist()))

    def decide(self, stretch: Stretch) -> Decision:
        """Decide one step."""
        step = _Step.of(stretch)
        self._speculation.start_requests([one for one in step.plan.decodes if stretch.started[0, one.slot]])
        choice = self._speculation.choose(step.plan)
        depth = self._draft(step, choice)
        self._current = self._speculation.admit(step.plan, step.block(depth, self._reads_head), choice.budget)
        return step.decision(depth, self._current)

    @torch.inference_mode()
    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        """Tell the engine's estimator of the outcome, if anything was drafted, and count the step."""
        if self._current is not None:
            seats = np.flatnonzero(stretch.active[0])
            current = replace(self._current, admitted=torch.from_numpy(decision.admitted[0, seats]))
            telling = stretch.telling[0, seats].tolist()
            self._speculation.observe(current, accepted[0, seats].tolist(), telling)
        self._speculation.end_step()

    @property
    def _reads_head(self) -> bool:
        return self._speculation.reads_head

    def _draft(self, step: _Step, choice: DraftChoice) -> int:
        """How deep the block becomes: as chosen, or until the engine says stop."""
        if choice.go_on is None:
            return choice.depth
        depth = min(choice.depth, 1)
        with torch.inference_mode():
            while 0 < depth < choice.depth and choice.go_on(depth - 1, step.features[:, depth - 1], None):
                depth += 1
        return depth


def _recorded_drafter(setting: Setting) -> SimpleNamespace:
    """What the engine asks of a drafter, beside its drafts."""
    rounds, info = setting.rounds, setting.rounds.info
    return SimpleNamespace(
        # where drafter and target share their noise, any choice leaves the text as it is
        knows_q_before_draw=info.budget_may_wait,
        drafts_in_parallel=info.drafts_in_parallel,
        has_confidence_head=info.confidence == "head" and rounds.share_recorded("head_logit") == 1,
        coupled=False,
    )


def _chunks(stretch: Stretch) -> list[SimpleNamespace]:
    """The prompts of a step as the engine counts them: their tokens together, and a token drawn at each end."""
    tokens, ended = (int(values[0]) for values in stretch.prompts)
    ends = [SimpleNamespace(num_tokens=0, samples=True) for _ in range(ended)]
    return [SimpleNamespace(num_tokens=tokens, samples=False), *ends] if tokens else []


@dataclass(frozen=True)
class _Step:
    """One step in the engine's terms: R requests, each in its seat.

    Attributes
    ----------
    stretch : Stretch
    seats : int64 [R]
    plan : StepPlan
    features, head : Tensor [R, K]
    """

    stretch: Stretch
    seats: Ints
    plan: StepPlan
    features: Tensor
    head: Tensor

    @classmethod
    def of(cls, stretch: Stretch) -> _Step:
        """The only step of a stretch."""
        seats = np.flatnonzero(stretch.active[0])
        requests: list[Any] = [
            SimpleNamespace(slot=int(seat), params=SimpleNamespace(is_greedy=bool(stretch.greedy[0, seat])))
            for seat in seats
        ]
        num_drafts = stretch.num_drafts[0, seats].tolist()
        chunks = cast("list[PrefillChunk]", _chunks(stretch))
        plan = StepPlan(cast("list[Request]", requests), num_drafts, chunks, sum(num_drafts))
        features, head = (torch.from_numpy(stretch.feature(name)[0, seats]) for name in ("logit_q_max", "head_logit"))
        return cls(stretch, seats, plan, features, head)

    def block(self, depth: int, reads_head: bool) -> DraftBlock:
        """The recorded drafts down to ``depth``; their tokens do not matter."""
        features = self.features[:, :depth]
        return DraftBlock(features.long(), features, None, self.head[:, :depth] if reads_head else None)

    def decision(self, depth: int, current: Round | None) -> Decision:
        """What was decided, in seats."""
        shape = self.stretch.num_drafts.shape
        admitted, predictions = np.zeros(shape, np.int64), np.full((*shape, self.features.shape[1]), np.nan, np.float32)
        if current is not None:
            admitted[0, self.seats] = current.admitted.numpy()
            predictions[0, self.seats] = current.confidences.numpy()
        budget = np.array([0 if current is None else int(current.budget)])
        return Decision(self.stretch.everywhere(np.array([depth])), admitted, budget, predictions)
