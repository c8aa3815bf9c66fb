from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.lab.evaluate.traces import memory_trace, one_run, with_drafts, with_labels
from tests.lab.synthetic import run_info

from adaverify.lab.evaluate.metrics import auc, log_loss
from adaverify.lab.evaluate.peer import river_prequential
from adaverify.lab.evaluate.prequential import prequential
from adaverify.policy import OnlineAcceptanceEstimator, RobustEstimator


def step_by_step(trace, K: int = 4) -> np.ndarray:
    """The published estimator over a trace of one run, by its plain loop."""
    estimator = OnlineAcceptanceEstimator(K)
    predicted = []
    for step in np.unique(trace.drafts.step):
        drafts = trace.drafts.select(trace.drafts.step == step)
        f = torch.from_numpy(drafts.logit_q_max.reshape(-1, K)).double()
        label = torch.from_numpy(drafts.label.reshape(-1, K))
        p = estimator.predict(f)
        predicted.append(p[label >= 0].numpy())
        estimator.observe(f, p, (label >= 0).sum(dim=1), (label == 1).sum(dim=1))
        estimator.end_step()
    return np.concatenate(predicted)


@pytest.fixture(scope="module")
def trace():
    return one_run(num_steps=450, num_requests=6)


def test_predictions_are_those_of_the_estimator_step_by_step(trace):
    np.testing.assert_allclose(prequential(trace), step_by_step(trace), rtol=1e-6)


def test_a_round_that_ended_without_a_rejection_teaches_none(trace):
    ended = (trace.drafts.label == 0) & (trace.drafts.request % 2 == 0) & (trace.drafts.position > 1)
    trace = with_labels(trace, ended, -1)
    np.testing.assert_allclose(prequential(trace), step_by_step(trace), rtol=1e-6)


def test_it_starts_from_nothing_and_learns_the_law(trace):
    predicted = prequential(trace)
    start = trace.labelled.step < 100
    np.testing.assert_allclose(
        predicted[start], 1 / (1 + np.exp(-(0.5 * trace.labelled.logit_q_max[start].astype(float) - 0.2))), rtol=1e-6
    )
    late = trace.labelled.select(~start)
    assert log_loss(predicted[~start], late.accepted) < log_loss(late.overlap, late.accepted) + 0.02


@pytest.mark.parametrize("predict", [prequential, river_prequential])
def test_no_prediction_knows_a_label_of_its_own_step_or_of_later_ones(trace, predict):
    later = (trace.drafts.step >= 250) & (trace.drafts.label >= 0)
    before, after = predict(trace), predict(with_labels(trace, later, 0))
    known = trace.labelled.step <= 250
    np.testing.assert_array_equal(after[known], before[known])
    assert (after[~known] != before[~known]).any()


def test_steps_without_labels_count_as_steps(trace):
    # the first 50 steps lose their labels: the first refit still comes after 100 steps
    silent = with_labels(trace, trace.drafts.step < 50, -1)
    predicted, step = prequential(silent), silent.labelled.step
    start = 1 / (1 + np.exp(-(0.5 * silent.labelled.logit_q_max.astype(float) - 0.2)))
    assert np.allclose(predicted[step < 100], start[step < 100])
    soon = (step >= 100) & (step < 110)
    assert not np.isclose(predicted[soon], start[soon], rtol=1e-3).all()


def test_untelling_labels_are_neither_learned_from_nor_scored(trace):
    tenant = trace.drafts.request % 3 == 0
    silent = with_labels(trace, tenant, -1)
    lying = with_drafts(with_labels(trace, tenant, 0), telling=~tenant)
    np.testing.assert_array_equal(prequential(lying), prequential(silent))


def test_every_run_starts_anew():
    law = {"num_steps": 250}
    both = memory_trace((run_info(run="a"), law), (run_info(run="b"), law))
    predicted = prequential(both)
    first, second = np.split(predicted, 2)
    np.testing.assert_array_equal(first, second)


def test_a_draft_that_is_not_finite_leaves_the_others_alone(trace):
    f = trace.drafts.logit_q_max.copy()
    labelled = np.flatnonzero(trace.drafts.label >= 0)
    f[labelled[5]] = np.nan
    predicted = prequential(with_drafts(trace, logit_q_max=f))
    assert np.isnan(predicted).tolist() == [i == 5 for i in range(len(labelled))]


class StepWatcher:
    """An estimator of another kind: always .5, and it writes down how it is fed."""

    def __init__(self) -> None:
        self.observed: list[int] = []
        self.started: list[int] = []
        self.labels = 0
        self.steps = 0

    steps_ahead = 1

    def start(self, slots):
        self.started += slots.tolist()

    def predict(self, features, requests=None):
        assert set(requests.slot.tolist()) <= set(self.started)
        return torch.full_like(features, 0.5)

    def observe(self, features, predictions, num_admitted, num_accepted, mask=None, requests=None):
        self.observed.append(len(features))
        self.labels += int(num_admitted.sum())

    def end_step(self):
        self.steps += 1


def test_an_estimator_that_may_change_after_every_step_is_fed_step_by_step(trace):
    watcher = StepWatcher()
    predicted = prequential(trace, lambda run, num_requests: watcher)
    assert watcher.observed == [6] * 450
    assert (watcher.steps, watcher.labels) == (450, len(trace.labelled))
    assert (predicted == 0.5).all()


def test_a_request_is_started_once_and_before_its_first_drafts_are_predicted(trace):
    watcher = StepWatcher()
    prequential(trace, lambda run, num_requests: watcher)
    assert sorted(watcher.started) == list(range(len(np.unique(trace.labelled.request))))


def test_the_robust_estimator_starts_a_request_from_what_it_has_learned_of_others(trace):
    class NeverStarted(RobustEstimator):
        def start(self, slots):
            pass

    with_start, without = (
        prequential(trace, lambda run, num_requests, kind=kind: kind(run.num_speculative_tokens, num_requests))
        for kind in (RobustEstimator, NeverStarted)
    )
    assert not np.array_equal(with_start, without)


def test_the_peer_learns_and_stops_where_it_is_told(trace):
    predicted = river_prequential(trace, max_labels=1000)
    part = np.isfinite(predicted)
    assert part[:1000].all()
    assert not part[1000:].any()
    assert predicted[0] == 0.5
    labelled = trace.labelled
    every = river_prequential(trace)
    assert auc(every, labelled.accepted) > auc(labelled.overlap, labelled.accepted) - 0.02
