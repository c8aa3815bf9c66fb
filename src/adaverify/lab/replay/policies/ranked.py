"""Adaptive verification: a budget from the costs, spent on the drafts that survive best."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from adaverify.lab.replay.policies.base import Coefficients, Decision, Policy, Setting, Stretch
from adaverify.lab.trace.trace import Ints
from adaverify.policy import (
    AcceptanceEstimator,
    ProbeSchedule,
    RequestRows,
    admit,
    choose_budget,
    survival,
    valid_prefix,
)

# Large enough that the steps' overhead does not count, small enough for the processor's cache.
_DRAFTS_AT_A_TIME = 1 << 18


def _over_steps(function: Callable[..., Tensor], in_dims: tuple[int | None, ...]) -> Callable[..., Tensor]:
    """The function for several steps at once; a step alone is spared the cost of batching, ten times its own."""
    batched = torch.vmap(function, in_dims=in_dims)

    def over_steps(*arguments: Any) -> Tensor:
        if len(arguments[0]) > 1:
            return batched(*arguments)
        alone = (value if dim is None else value[0] for value, dim in zip(arguments, in_dims, strict=True))
        return function(*alone)[None]

    return over_steps


_budgets = _over_steps(choose_budget, in_dims=(0, 0, 0, 0, None, 0))
_admitted = _over_steps(admit, in_dims=(0, 0, 0))


class Confidences(Protocol):
    """Says how likely each draft is to be accepted, given that the ones before it are."""

    @property
    def steps_ahead(self) -> int | None:
        """Steps that may be predicted before their outcome must have been seen; None for any number."""

    @property
    def coefficients(self) -> Coefficients | None:
        """What has been learned; None for confidences that learn nothing."""

    def predict(self, stretch: Stretch) -> Tensor:
        """Give chances [T, N, K]; what is not finite is never verified."""

    def expected(self, stretch: Stretch) -> Tensor | float:
        """What the drafts of a new request count as before its first block is scored, to broadcast to [T, N, K]."""

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        """Learn, as :meth:`~adaverify.lab.replay.policies.base.Policy.observe`."""


class Recorded:
    """Confidences that are in the trace: the raw q_max, the drafter's head, or the true chance.

    Parameters
    ----------
    feature : str
    transform : callable, optional
        From the feature to chances.
    new : Tensor or float
        What a new request counts as, [K]; certain by default.
    """

    steps_ahead = None
    coefficients = None

    def __init__(
        self, feature: str, transform: Callable[[Tensor], Tensor] | None = None, new: Tensor | float = 1.0
    ) -> None:
        self.feature = feature
        self.transform = transform
        self.new = new

    def predict(self, stretch: Stretch) -> Tensor:
        """Read the feature; where the draft law is not finite there is nothing to be confident of."""
        values = torch.from_numpy(stretch.feature(self.feature))
        values = values if self.transform is None else self.transform(values)
        return values.where(torch.from_numpy(stretch.feature("logit_q_max")).isfinite(), torch.nan)

    def expected(self, stretch: Stretch) -> Tensor | float:
        """What was given at the start."""
        return self.new

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        """Learn nothing."""


class Learned:
    """Confidences of an online estimator, fed with the labels that its own decisions give."""

    def __init__(self, estimator: AcceptanceEstimator) -> None:
        self.estimator = estimator

    @property
    def steps_ahead(self) -> int:
        """Steps over which the estimator's predictions stay as they are."""
        return self.estimator.steps_ahead

    @property
    def coefficients(self) -> Coefficients:
        """The present fit."""
        fit = self.estimator
        return Coefficients(fit.num_refits, float(fit.slope), tuple(fit.intercepts.tolist()))

    def predict(self, stretch: Stretch) -> Tensor:
        """Predict from the log-odds of q_max."""
        features = torch.from_numpy(stretch.feature("logit_q_max"))
        T, N, K = features.shape
        for started in stretch.started:
            self.estimator.start(torch.from_numpy(started.nonzero()[0]))
        return self.estimator.predict(features.view(-1, K), _request_rows(stretch)).view(T, N, K)

    def expected(self, stretch: Stretch) -> Tensor | float:
        """What the estimator expects of a new request."""
        expected: Tensor = self.estimator.expected(torch.from_numpy(stretch.greedy).flatten())
        return expected.view(*stretch.greedy.shape, -1)

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        """Add all labels of the stretch, then count its steps; the refit, if it is due, comes with the last."""
        assert decision.predictions is not None
        K = decision.predictions.shape[-1]
        self.estimator.observe(
            torch.from_numpy(stretch.feature("logit_q_max")).view(-1, K),
            torch.from_numpy(decision.predictions).view(-1, K),
            torch.from_numpy(decision.admitted).view(-1),
            torch.from_numpy(accepted).view(-1),
            mask=torch.from_numpy(stretch.telling).view(-1),
            requests=_request_rows(stretch),
        )
        for _ in range(len(accepted)):
            self.estimator.end_step()


def _request_rows(stretch: Stretch) -> RequestRows:
    """Seat and kind of every request, [T * N]."""
    T, N = stretch.rounds.shape
    return RequestRows(slot=torch.arange(N).repeat(T), greedy=torch.from_numpy(stretch.greedy).flatten())


class Ranked(Policy):
    """Verifies as many drafts of the batch as pay, those of the largest survival.

    As in the engine, the budget is chosen from the confidences of each request's previous block, a request that has
    none counts as what is expected of it, and only coupled verification, or a drafter that knows all its distributions
    before any draw, lets the budget look at the present block. Everything is drafted, and paid for, before it is
    trimmed.

    Parameters
    ----------
    name : str
    confidences : Confidences
    setting : Setting
    attainable : bool
    probes : ProbeSchedule, optional
        Steps that verify everything, so that labels never run dry.
    """

    heeds_prompts = True

    def __init__(
        self,
        name: str,
        confidences: Confidences,
        setting: Setting,
        attainable: bool = True,
        probes: ProbeSchedule | None = None,
    ) -> None:
        K = setting.num_speculative_tokens
        self.name = name
        self.attainable = attainable
        self.confidences = confidences
        self.steps_ahead = confidences.steps_ahead or max(1, _DRAFTS_AT_A_TIME // (setting.num_seats * K))
        self._costs = setting.prices.tables
        self._looks_at_present = setting.rounds.info.budget_may_wait
        self._probes = probes
        self._latest = torch.ones(setting.num_seats, K)

    @property
    def coefficients(self) -> Coefficients | None:
        """Those of the confidences."""
        return self.confidences.coefficients

    @torch.inference_mode()
    def decide(self, stretch: Stretch) -> Decision:
        """Score, choose the budget of every step, admit."""
        new = torch.as_tensor(self.confidences.expected(stretch))
        confidences = self.confidences.predict(stretch)
        scheduled = torch.from_numpy(stretch.num_drafts)
        present = confidences.nan_to_num(0.0)
        previous = torch.cat([self._latest[None], present[:-1]])
        previous = torch.where(torch.from_numpy(stretch.started)[..., None], new, previous)
        self._latest = present[-1]
        known = present if self._looks_at_present else previous
        with warnings.catch_warnings():
            # Of the operations that torch cannot batch, and loops over instead, there are only a few, and small ones.
            warnings.filterwarnings("ignore", message=".*not yet implemented the batching rule")
            budget = self._budgets(known, scheduled, stretch)
            budget = self._explore(budget, scheduled.sum(dim=1), stretch)
            admitted = _admit(confidences, scheduled, budget)
        return Decision(
            depth=stretch.everywhere(stretch.num_drafts.max(axis=1)),
            admitted=admitted.numpy(),
            budget=budget.numpy(),
            predictions=confidences.numpy(),
        )

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        """Pass the outcome on to the confidences."""
        self.confidences.observe(stretch, decision, accepted)

    def _explore(self, budget: Tensor, everything: Tensor, stretch: Stretch) -> Tensor:
        """Budgets [T], those of probes replaced by all drafts."""
        if self._probes is None:
            return budget
        others = torch.from_numpy(stretch.num_non_draft)
        verify = torch.stack([self._costs.verify[others + drafts] for drafts in (others * 0, budget, everything)])
        drafting = self._costs.draft[-1, torch.from_numpy(stretch.num_requests)]
        prices, costs = (verify[2] - verify[0]).tolist(), (verify[1] + drafting).tolist()
        due = [self._probes.is_due(price, cost) for price, cost in zip(prices, costs, strict=True)]
        return torch.where(torch.tensor(due), everything, budget)

    def _budgets(self, known: Tensor, scheduled: Tensor, stretch: Stretch) -> Tensor:
        """Budget of every step, int64 [T], from confidences [T, N, K] that it may look at."""
        scores = survival(known.flatten(0, 1), scheduled.flatten()).view_as(known)
        counts = map(torch.from_numpy, (stretch.num_sampling, stretch.num_requests, stretch.num_non_draft))
        return _budgets(scores, *counts, self._costs, scheduled.sum(dim=1))


def _admit(confidences: Tensor, scheduled: Tensor, budget: Tensor) -> Tensor:
    """Drafts verified for each request, int64 [T, N]."""
    flat, num_drafts = confidences.flatten(0, 1), scheduled.flatten()
    live = survival(flat, num_drafts).view_as(confidences)
    return _admitted(live, valid_prefix(flat, num_drafts).view_as(scheduled), budget)
