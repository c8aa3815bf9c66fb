"""Adaptive verification: a budget from the costs, spent on the drafts that survive best."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from adaverify.lab.replay.policies.base import Coefficients, Decision, Policy, Setting, Stretch
from adaverify.lab.trace.trace import Ints
from adaverify.policy import AcceptanceEstimator, RequestRows, admit, choose_budget, survival, valid_prefix

# Large enough that the steps' overhead does not count, small enough for the processor's cache.
_DRAFTS_AT_A_TIME = 1 << 18

_budgets = torch.vmap(choose_budget, in_dims=(0, 0, 0, 0, None, 0))
_admitted = torch.vmap(admit)


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

    def of_new(self, stretch: Stretch) -> Tensor:
        """Give chances, broadcastable to [T, N, K], that a request counts with before its first block is scored."""

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        """Learn, as :meth:`~adaverify.lab.replay.policies.base.Policy.observe`."""


class Recorded:
    """Confidences that are in the trace: the raw q_max, the drafter's head, or the true chance."""

    steps_ahead = None
    coefficients = None

    def __init__(self, feature: str, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        self.feature = feature
        self.transform = transform

    def predict(self, stretch: Stretch) -> Tensor:
        """Read the feature; where the draft law is not finite there is nothing to be confident of."""
        values = torch.from_numpy(stretch.feature(self.feature))
        values = values if self.transform is None else self.transform(values)
        return values.where(torch.from_numpy(stretch.feature("logit_q_max")).isfinite(), torch.nan)

    def of_new(self, stretch: Stretch) -> Tensor:
        """Certain, as in the paper."""
        return torch.ones(())

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
        return self.estimator.predict(features.view(-1, K), _requests(stretch)).view(T, N, K)

    def of_new(self, stretch: Stretch) -> Tensor:
        """What the estimator expects of a new request."""
        greedy = torch.from_numpy(stretch.greedy)
        return self.estimator.expected(greedy.view(-1)).view(*greedy.shape, -1)

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
            requests=_requests(stretch),
        )
        for _ in range(len(accepted)):
            self.estimator.end_step()


def _requests(stretch: Stretch) -> RequestRows:
    """Whose each row is: the seat is the slot."""
    T, N = stretch.rounds.shape
    return RequestRows(torch.arange(N).repeat(T), torch.from_numpy(stretch.greedy).view(-1))


class Ranked(Policy):
    """Verifies as many drafts of the batch as pay, those of the largest survival.

    As in the engine, the budget is chosen from the confidences of each request's previous block, a request without one
    counts as what its confidences say of new ones, and only a drafter that knows all its distributions before any draw
    lets the budget look at the present block. Everything is drafted, and paid for, before it is trimmed.

    Parameters
    ----------
    name : str
    confidences : Confidences
    setting : Setting
    attainable : bool
    """

    def __init__(self, name: str, confidences: Confidences, setting: Setting, attainable: bool = True) -> None:
        K = setting.num_speculative_tokens
        self.name = name
        self.attainable = attainable
        self.confidences = confidences
        self.steps_ahead = confidences.steps_ahead or max(1, _DRAFTS_AT_A_TIME // (setting.num_seats * K))
        self._costs = setting.prices.tables
        self._looks_at_present = setting.rounds.info.knows_q_before_draw
        self._latest = torch.ones(setting.num_seats, K)

    @property
    def coefficients(self) -> Coefficients | None:
        """Those of the confidences."""
        return self.confidences.coefficients

    @torch.inference_mode()
    def decide(self, stretch: Stretch) -> Decision:
        """Score, choose the budget of every step, admit."""
        confidences = self.confidences.predict(stretch)
        scheduled = torch.from_numpy(stretch.num_drafts)
        present = confidences.nan_to_num(0.0)
        previous = torch.cat([self._latest[None], present[:-1]])
        started = torch.from_numpy(stretch.started)[..., None]
        previous = torch.where(started, self.confidences.of_new(stretch), previous)
        self._latest = present[-1]
        known = present if self._looks_at_present else previous
        with warnings.catch_warnings():
            # Of the operations that torch cannot batch, and loops over instead, there are only a few, and small ones.
            warnings.filterwarnings("ignore", message=".*not yet implemented the batching rule")
            budget = self._budgets(known, scheduled, torch.from_numpy(stretch.num_requests))
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

    def _budgets(self, known: Tensor, scheduled: Tensor, num_requests: Tensor) -> Tensor:
        """Budget of every step, int64 [T], from confidences [T, N, K] that it may look at."""
        scores = survival(known.flatten(0, 1), scheduled.flatten()).view_as(known)
        return _budgets(scores, num_requests, num_requests, num_requests, self._costs, scheduled.sum(dim=1))


def _admit(confidences: Tensor, scheduled: Tensor, budget: Tensor) -> Tensor:
    """Drafts verified for each request, int64 [T, N]."""
    flat, num_drafts = confidences.flatten(0, 1), scheduled.flatten()
    live = survival(flat, num_drafts).view_as(confidences)
    return _admitted(live, valid_prefix(flat, num_drafts).view_as(scheduled), budget)
