"""Online estimators over a trace in the order it was recorded: every draft is predicted before it is learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaverify.lab.trace import Drafts, RunInfo, Trace
from adaverify.policy import AcceptanceEstimator, OnlineAcceptanceEstimator, RequestRows, RobustEstimator

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


EstimatorFactory = Callable[[RunInfo, int], AcceptanceEstimator]
"""Makes the estimator of a run, given how many requests it has."""


def paper_estimator(run: RunInfo, num_requests: int) -> AcceptanceEstimator:
    """The published estimator, from its published start."""
    return OnlineAcceptanceEstimator(run.num_speculative_tokens)


def robust_estimator(run: RunInfo, num_requests: int) -> AcceptanceEstimator:
    """Ours, from its start."""
    return RobustEstimator(run.num_speculative_tokens, num_requests)


def prequential(trace: Trace, factory: EstimatorFactory = paper_estimator) -> Floats:
    """Predict the labelled drafts of a trace by an estimator that learns as it goes.

    Every run has an estimator of its own that knows nothing at the start, as a server does. A step's drafts are all
    predicted before any of them is learned from.

    Parameters
    ----------
    trace : Trace
    factory : callable
        Makes the estimator of a run.

    Returns
    -------
    ndarray, shape [N]
        Chances, one for each of ``trace.labelled``.
    """
    step = _step_ranks(trace.drafts)[trace.drafts.is_labelled]
    predicted = np.empty(len(step))
    for number, run in enumerate(trace.runs):
        first, end = np.searchsorted(trace.labelled.run, [number, number + 1])
        rows = slice(int(first), int(end))
        rounds = Rounds.of(trace.labelled.select(rows), step[rows], run.num_speculative_tokens)
        predicted[rows] = rounds.flatten(_run_through(rounds, factory(run, rounds.num_requests)))
    return predicted


@dataclass(frozen=True)
class Rounds:
    """Labelled drafts of a run, one row for each request and step.

    Attributes
    ----------
    features : Tensor, shape [M, K], float64
        Log-odds of q_max; nan where there is no labelled draft.
    num_labelled, num_accepted : Tensor, shape [M], int64
    requests : RequestRows
        Of the M rows; requests are numbered from 0.
    step : ndarray, shape [M]
        Steps of the run that drafted before this one.
    row, depth : ndarray, shape [N]
        Where each draft is.
    """

    features: Tensor
    num_labelled: Tensor
    num_accepted: Tensor
    requests: RequestRows
    step: Ints
    row: Ints
    depth: Ints

    @classmethod
    def of(cls, drafts: Drafts, step: Ints, K: int) -> Rounds:
        """Put the drafts of a run into rows."""
        is_new = np.append(True, (np.diff(step) != 0) | (np.diff(drafts.request) != 0))[: len(step)]
        row, depth = is_new.cumsum() - 1, drafts.position - 1
        features = np.full((int(is_new.sum()), K), np.nan)
        features[row, depth] = drafts.logit_q_max
        counts = [np.bincount(row, weights, len(features)) for weights in (None, drafts.accepted)]
        labelled, accepted = (torch.from_numpy(count.astype(np.int64)) for count in counts)
        _, number = np.unique(drafts.request[is_new], return_inverse=True)
        greedy = torch.from_numpy(drafts.temperature[is_new] == 0)
        requests = RequestRows(torch.from_numpy(number), greedy)
        return cls(torch.from_numpy(features), labelled, accepted, requests, step[is_new], row, depth)

    @property
    def num_requests(self) -> int:
        """Different requests; at least 1."""
        return int(self.requests.slot.max()) + 1 if len(self.step) else 1

    @cached_property
    def _is_first(self) -> Tensor:
        """Whether a row is the first of its request, shape [M], bool."""
        is_first = torch.zeros_like(self.requests.greedy)
        _, first = np.unique(self.requests.slot.numpy(), return_index=True)
        is_first[torch.from_numpy(first)] = True
        return is_first

    def starting(self, rows: slice) -> Tensor:
        """Slots of the requests whose first row is one of these, shape [S], int64."""
        return self.requests.slot[rows][self._is_first[rows]]

    def chunks(self, num_steps: int) -> Iterator[tuple[slice, int]]:
        """Rows of every ``num_steps`` steps, and the steps they took."""
        last = int(self.step[-1]) + 1 if len(self.step) else 0
        for start in range(0, last, num_steps):
            rows = np.searchsorted(self.step, [start, start + num_steps])
            yield slice(int(rows[0]), int(rows[1])), min(num_steps, last - start)

    def flatten(self, values: Tensor) -> Floats:
        """Values of the labelled drafts, shape [N], from values of all, shape [M, K]."""
        return np.asarray(values.numpy()[self.row, self.depth], dtype=np.float64)


@torch.inference_mode()
def _run_through(rounds: Rounds, estimator: AcceptanceEstimator) -> Tensor:
    """Predictions of all rounds, each made before it was observed."""
    predictions = torch.empty_like(rounds.features)
    for rows, num_steps in rounds.chunks(estimator.steps_ahead):
        features = rounds.features[rows]
        requests = RequestRows(rounds.requests.slot[rows], rounds.requests.greedy[rows])
        estimator.start(rounds.starting(rows))
        predictions[rows] = estimator.predict(features, requests)
        # a round may end without a rejection, at the end of its request: what has a label counts as admitted
        labelled, accepted = rounds.num_labelled[rows], rounds.num_accepted[rows]
        estimator.observe(features, predictions[rows], labelled, accepted, requests=requests)
        for _ in range(num_steps):
            estimator.end_step()
    return predictions


def _step_ranks(drafts: Drafts) -> Ints:
    """For each draft the number of steps of its run that drafted before, shape [N]."""
    new_run = np.append(True, np.diff(drafts.run) != 0)[: len(drafts)]
    rank = (new_run | np.append(True, np.diff(drafts.step) != 0)[: len(drafts)]).cumsum()
    return rank - np.maximum.accumulate(np.where(new_run, rank, 0))
