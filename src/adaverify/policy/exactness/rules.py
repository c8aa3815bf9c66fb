"""The rules under audit: shipped decisions called as they are, and forbidden ones made wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from adaverify.policy.budget import choose_budget
from adaverify.policy.cost import CostCurve, CostTable
from adaverify.policy.estimator import OnlineAcceptanceEstimator
from adaverify.policy.exactness.law import Block, Law
from adaverify.policy.features import log_odds_of_max
from adaverify.policy.survival import admit, survival, valid_prefix

Rows = tuple[tuple[float, ...], ...]
Admission = Callable[[Tensor, Tensor, Tensor], Tensor]
DraftScore = Callable[[Block, int], float]


class Score(Protocol):
    """Gives every draft of a block its confidence; may learn from outcomes."""

    def start(self) -> Any:
        """State (hashable) before the first round."""

    def confidences(self, state: Any, block: Block) -> tuple[float, ...]:
        """Confidence of each draft."""

    def learn(self, state: Any, blocks: tuple[Block, ...], admitted: Any, accepted: Any) -> Any:
        """State (hashable) after a round."""


@dataclass(frozen=True)
class GivenScore:
    """Confidence of draft i as a function of the block and i; learns nothing."""

    function: DraftScore

    def start(self) -> None:
        """Nothing to remember."""

    def confidences(self, state: None, block: Block) -> tuple[float, ...]:
        """Confidence of each draft."""
        return tuple(self.function(block, depth) for depth in range(len(block.drafts)))

    def learn(self, state: None, blocks: tuple[Block, ...], admitted: Any, accepted: Any) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class EstimatorScore:
    """Confidences of the shipped feature and estimator; with ``learns``, refitted after every round.

    The state is the slope followed by the intercepts.
    """

    num_speculative_tokens: int
    slope: float = 0.5
    intercept: float = -0.2
    learns: bool = False

    def start(self) -> tuple[float, ...]:
        """Coefficients before the first label."""
        return (self.slope, *[self.intercept] * self.num_speculative_tokens)

    def confidences(self, state: tuple[float, ...], block: Block) -> tuple[float, ...]:
        """Confidence of each draft."""
        return _estimate(state, block.laws)

    def learn(self, state: tuple[float, ...], blocks: tuple[Block, ...], admitted: Any, accepted: Any) -> Any:
        """Coefficients after the labels of a round."""
        if not self.learns:
            return state
        estimator = _estimator(state)
        features = _padded([_features(block.laws) for block in blocks], self.num_speculative_tokens)
        estimator.observe(features, estimator.predict(features), torch.tensor(admitted), torch.tensor(accepted))
        estimator.end_step()
        return (float(estimator.slope), *estimator.intercepts.tolist())


def by_survival(confidences: Tensor, num_drafts: Tensor, budget: Tensor) -> Tensor:
    """Admit by running product: the shipped way."""
    return admit(survival(confidences, num_drafts), valid_prefix(confidences, num_drafts), budget)


def by_running_minimum(scores: Tensor, num_drafts: Tensor, budget: Tensor) -> Tensor:
    """Admit by any score known before the draw; ``admit`` takes its running minimum."""
    return admit(scores, valid_prefix(scores, num_drafts), budget)


def by_bare_score(scores: Tensor, num_drafts: Tensor, budget: Tensor) -> Tensor:
    """Forbidden: rank scores that may rise along a block, then keep the winners that form a prefix."""
    positions = torch.arange(scores.shape[1])
    eligible = torch.where(positions < num_drafts[:, None], scores, -1.0)
    return _winners(eligible.reshape(-1), budget).view_as(scores).long().cumprod(dim=1).sum(dim=1)


def by_survival_deeper_first(confidences: Tensor, num_drafts: Tensor, budget: Tensor) -> Tensor:
    """Forbidden: on ties a deeper draft goes first."""
    positions = torch.arange(confidences.shape[1])
    eligible = torch.where(positions < num_drafts[:, None], survival(confidences, num_drafts), -1.0)
    deeper_first = eligible.flip(1).t().reshape(-1)
    return _winners(deeper_first, budget).view(*confidences.shape[::-1]).sum(dim=0)


@dataclass(frozen=True)
class PrefixRule:
    """Verify drafts up to the first that scores below ``threshold``; remembers nothing."""

    score: DraftScore
    threshold: float = 0.5

    def start(self, num_requests: int) -> None:
        """Nothing to remember."""

    def admit(self, memory: None, blocks: tuple[Block, ...]) -> tuple[int, ...]:
        """Drafts verified, by request."""
        return tuple(self._length(block) for block in blocks)

    def remember(self, memory: None, blocks: tuple[Block, ...], admitted: Any, accepted: Any) -> None:
        """Nothing to remember."""

    def _length(self, block: Block) -> int:
        depths = range(len(block.drafts))
        return next((depth for depth in depths if self.score(block, depth) < self.threshold), len(depths))


@dataclass(frozen=True)
class BudgetRule:
    """A draft budget from the cost table, then admission: the shipped decision and its forbidden relatives.

    Memory is the survival of the previous round's drafts and the state of the score.

    Attributes
    ----------
    score : Score
    num_speculative_tokens : int
    costs : tuple of float
        Milliseconds of a target pass over 1, 2, ... packed tokens; drafting is free.
    fresh : bool
        Choose the budget from the current confidences instead of the previous ones. Allowed only where they are
        known before any draft is drawn.
    bound_by_valid : bool
        Forbidden: let the current block's non-finite confidences lower the largest budget considered.
    admission : callable
    first_survival : float
        What stands in for the previous round in a request's first.
    """

    score: Score
    num_speculative_tokens: int
    costs: tuple[float, ...]
    fresh: bool = False
    bound_by_valid: bool = False
    admission: Admission = by_survival
    first_survival: float = 1.0

    def start(self, num_requests: int) -> tuple[Rows, Any]:
        """Memory before the first round."""
        return ((self.first_survival,) * self.num_speculative_tokens,) * num_requests, self.score.start()

    def admit(self, memory: tuple[Rows, Any], blocks: tuple[Block, ...]) -> tuple[int, ...]:
        """Drafts verified, by request."""
        stale, state = memory
        confidences = tuple(self.score.confidences(state, block) for block in blocks)
        return _decide(self.costs, self.fresh, self.bound_by_valid, self.admission, stale, confidences)

    def remember(self, memory: tuple[Rows, Any], blocks: tuple[Block, ...], admitted: Any, accepted: Any) -> Any:
        """Memory for the next round."""
        confidences = tuple(self.score.confidences(memory[1], block) for block in blocks)
        stale = _survival_rows(confidences, self.num_speculative_tokens)
        return stale, self.score.learn(memory[1], blocks, admitted, accepted)


@lru_cache(maxsize=1 << 16)
def _decide(
    costs: tuple[float, ...], fresh: bool, bound_by_valid: bool, admission: Admission, stale: Rows, confidences: Rows
) -> tuple[int, ...]:
    num_drafts = torch.tensor([len(row) for row in confidences])
    live = _padded(confidences, len(stale[0]))
    num_sampling = (num_drafts > 0).sum()
    table = CostTable(CostCurve(tuple(range(1, len(costs) + 1)), costs)).materialize(len(stale), len(costs))
    basis = survival(live, num_drafts) if fresh else torch.tensor(stale)
    bound = valid_prefix(live, num_drafts) if bound_by_valid else num_drafts
    budget = choose_budget(basis, num_sampling, num_sampling, num_sampling, table, bound.sum())
    return tuple(admission(live, num_drafts, budget).tolist())


@lru_cache(maxsize=1 << 16)
def _survival_rows(confidences: Rows, K: int) -> Rows:
    num_drafts = torch.tensor([len(row) for row in confidences])
    rows = survival(_padded(confidences, K), num_drafts)
    absent = torch.arange(K) >= num_drafts[:, None]
    return tuple(tuple(row) for row in torch.where(absent, -1.0, rows).tolist())


@lru_cache(maxsize=1 << 16)
def _estimate(state: tuple[float, ...], laws: tuple[Law, ...]) -> tuple[float, ...]:
    features = _padded([_features(laws)], len(state) - 1)
    return tuple(_estimator(state).predict(features)[0, : len(laws)].tolist())


def _features(laws: tuple[Law, ...]) -> list[float]:
    return [float(log_odds_of_max(torch.tensor([float(part) for part in law]).log())) for law in laws]


def _estimator(state: tuple[float, ...]) -> OnlineAcceptanceEstimator:
    estimator = OnlineAcceptanceEstimator(len(state) - 1, refit_interval=1, damping=1.0)
    estimator.slope.fill_(state[0])
    estimator.intercepts.copy_(torch.tensor(state[1:]))
    return estimator


def _padded(rows: Any, width: int) -> Tensor:
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows])


def _winners(scores: Tensor, budget: Tensor) -> Tensor:
    order = scores.sort(descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(scores)))
    return rank < budget
