from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from adaverify.errors import ConfigError
from adaverify.policy import OnlineAcceptanceEstimator, solve_arrowhead

SEED = 0


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def test_predicts_with_one_slope_and_an_intercept_per_position() -> None:
    estimator = OnlineAcceptanceEstimator(3)
    estimator.intercepts.copy_(torch.tensor([0.3, -0.2, -1.0]))
    features = torch.tensor([[1.0, 2.0, -3.0]])
    expected = torch.sigmoid(0.5 * features + torch.tensor([0.3, -0.2, -1.0]))
    torch.testing.assert_close(estimator.predict(features), expected)
    for position in range(3):
        torch.testing.assert_close(estimator.predict_at(features[:, position], position), expected[:, position])


@pytest.mark.parametrize("K", range(1, 17))
def test_closed_form_equals_dense_solve(K: int) -> None:
    # Sums of random labels, so that the system is one that can occur, with positions that have no label.
    rows = 200
    f = torch.randn(rows, K, generator=generator(), dtype=torch.float64) * 3
    v = torch.rand(rows, K, generator=generator(), dtype=torch.float64) * 0.25
    r = torch.rand(rows, K, generator=generator(), dtype=torch.float64) - 0.5
    labelled = torch.rand(rows, K, generator=generator()) < torch.linspace(1, 0, K)
    v, r = v * labelled, r * labelled
    a, b, c, g0, g1 = (v * f * f).sum(0), (v * f).sum(0), v.sum(0), (r * f).sum(0), r.sum(0)
    dense = torch.diag(torch.cat([a.sum().view(1), c]) + 1e-3)
    dense[0, 1:] = b
    dense[1:, 0] = b
    expected = torch.linalg.solve(dense, torch.cat([g0.sum().view(1), g1]))
    slope_step, intercept_steps = solve_arrowhead(a, b, c, g0, g1, 1e-3)
    torch.testing.assert_close(torch.cat([slope_step.view(1), intercept_steps]), expected, rtol=1e-6, atol=1e-12)


def test_labels_stop_at_the_first_rejection_and_at_what_was_admitted() -> None:
    estimator = OnlineAcceptanceEstimator(4)
    features = torch.ones(5, 4)
    predictions = torch.full((5, 4), 0.5)
    admitted = torch.tensor([4, 4, 2, 0, 4])
    accepted = torch.tensor([4, 1, 2, 0, 0])
    estimator.observe(features, predictions, admitted, accepted)
    assert estimator.counts.tolist() == [4, 3, 1, 1]
    assert estimator.g1.tolist() == pytest.approx([3 * 0.5 - 0.5, 2 * 0.5 - 0.5, 0.5, 0.5])
    assert estimator.c.tolist() == pytest.approx([1.0, 0.75, 0.25, 0.25])


def test_sums_are_those_of_the_definition() -> None:
    estimator = OnlineAcceptanceEstimator(1)
    estimator.observe(torch.tensor([[2.0], [3.0]]), torch.tensor([[0.8], [0.6]]), torch.ones(2), torch.tensor([1, 0]))
    v, r, f = np.array([0.16, 0.24]), np.array([0.2, -0.6]), np.array([2.0, 3.0])
    for name, expected in (("a", v * f * f), ("b", v * f), ("c", v), ("g0", r * f), ("g1", r)):
        assert getattr(estimator, name).item() == pytest.approx(expected.sum(), rel=1e-6)


def test_masked_requests_and_bad_numbers_add_nothing() -> None:
    estimator, clean = OnlineAcceptanceEstimator(2), OnlineAcceptanceEstimator(2)
    features = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [1.0, float("inf")], [9.0, 9.0]])
    predictions = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    both = torch.tensor([2, 2, 2, 2])
    estimator.observe(features, predictions, both, both, torch.tensor([True, True, True, False]))
    clean.observe(torch.tensor([[1.0, 2.0]]), torch.full((1, 2), 0.5), both[:1], both[:1])
    clean.observe(torch.tensor([[1.0, 1.0]]), torch.full((1, 2), 0.5), both[:1], torch.tensor([0]))
    assert estimator.counts.tolist() == [2, 2]
    assert all(getattr(estimator, name).isfinite().all() for name in OnlineAcceptanceEstimator.SUMS)
    assert estimator.b.tolist() == pytest.approx([0.5, 0.75])
    estimator.observe(features[:1], torch.full((1, 2), float("nan")), both[:1], both[:1])
    assert estimator.counts.tolist() == [2, 2]


def one_round(estimator: OnlineAcceptanceEstimator, rows: int = 64) -> None:
    """Labels of a drafter somewhat better than the estimator starts out believing."""
    K = estimator.num_speculative_tokens
    features = torch.randn(rows, K, generator=generator()) * 2
    hit = torch.rand(rows, K, generator=generator().manual_seed(1)) < torch.sigmoid(0.7 * features + 0.3)
    accepted = hit.long().cumprod(dim=1).sum(dim=1)
    estimator.observe(features, estimator.predict(features), torch.full((rows,), K), accepted)


def test_refits_every_interval_and_clears_the_sums() -> None:
    estimator = OnlineAcceptanceEstimator(3, refit_interval=4)
    slope = estimator.slope.clone()
    for _ in range(3):
        one_round(estimator)
        estimator.end_step()
    assert estimator.num_refits == 0
    assert torch.equal(estimator.slope, slope)
    estimator.end_step()
    assert estimator.num_refits == 1
    assert not torch.equal(estimator.slope, slope)
    assert all(not getattr(estimator, name).any() for name in OnlineAcceptanceEstimator.SUMS)


def test_refit_damps_each_step_by_its_labels() -> None:
    estimator = OnlineAcceptanceEstimator(2, damping=50.0)
    one_round(estimator, rows=32)
    counts = estimator.counts.clone()
    sums = [getattr(estimator, name).clone() for name in ("a", "b", "c", "g0", "g1")]
    slope_step, _ = solve_arrowhead(*sums, ridge=1e-3)
    damped = slope_step * counts.sum() / (counts.sum() + 50)
    _, b, c, _, g1 = sums
    intercept_steps = (g1 - b * damped) / (c + 1e-3) * counts / (counts + 50)
    estimator.refit()
    assert estimator.slope.item() == pytest.approx(0.5 + damped.item(), rel=1e-6)
    torch.testing.assert_close(estimator.intercepts, -0.2 + intercept_steps.float())


def test_a_slope_is_never_driven_negative_and_intercepts_follow_the_refused_step() -> None:
    estimator = OnlineAcceptanceEstimator(1, damping=0.0)
    # Sure drafts fail and hopeless ones pass: the fit wants a negative slope.
    features = torch.tensor([[4.0], [-4.0]] * 50)
    accepted = torch.tensor([0, 1] * 50)
    estimator.observe(features, estimator.predict(features), torch.ones(100), accepted)
    g1, c = estimator.g1.clone(), estimator.c.clone()
    estimator.refit()
    assert estimator.slope.item() == 0.5
    assert estimator.intercepts.item() == pytest.approx(-0.2 + (g1 / (c + 1e-3)).item(), rel=1e-5)


@pytest.mark.parametrize("damping", [0.0, 50.0])
def test_refit_without_labels_changes_nothing(damping: float) -> None:
    estimator = OnlineAcceptanceEstimator(3, damping=damping)
    estimator.refit()
    assert estimator.slope.item() == 0.5
    assert estimator.intercepts.tolist() == pytest.approx([-0.2] * 3)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_steps_that_are_not_finite_are_refused(bad: float) -> None:
    estimator, other = OnlineAcceptanceEstimator(2), OnlineAcceptanceEstimator(2)
    one_round(estimator)
    estimator.g0[0] = bad
    estimator.refit()
    assert estimator.slope.item() == 0.5
    assert estimator.intercepts.isfinite().all()
    one_round(other)
    other.g1[1] = bad
    other.refit()
    assert other.slope.item() == 0.5
    assert other.intercepts[0].item() != pytest.approx(-0.2)
    assert other.intercepts[1].item() == pytest.approx(-0.2)


def synthetic_labels(rows: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, accepted counts and admitted counts of a drafter whose law is the estimator's."""
    features = torch.randn(rows, K, generator=generator()) * 2 + 1
    chance = torch.sigmoid(0.62 * features + torch.linspace(0.4, -0.6, K))
    hit = torch.rand(rows, K, generator=generator().manual_seed(1)) < chance
    return features, hit.long().cumprod(dim=1).sum(dim=1), torch.randint(1, K + 1, (rows,), generator=generator())


def test_agrees_with_scikit_learn_on_100_000_labels() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is the oracle")
    K = 5
    features, hits, admitted = synthetic_labels(58_000, K)
    accepted = torch.minimum(hits, admitted)
    positions = torch.arange(K)
    labelled = (positions <= accepted[:, None]) & (positions < admitted[:, None])
    assert labelled.sum() >= 100_000
    dummies = torch.eye(K).expand(len(features), K, K)[labelled]
    design = torch.cat([features[labelled][:, None], dummies], dim=1).numpy()
    labels = (positions < accepted[:, None])[labelled].numpy()
    oracle = linear_model.LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-8, max_iter=1000)
    oracle.fit(design, labels)

    # Each pass over the labels, in steps of 1,000 requests, is one reweighting of the least squares.
    estimator = OnlineAcceptanceEstimator(K, refit_interval=58)
    for _ in range(8):
        for rows in torch.arange(len(features)).split(1_000):
            predictions = estimator.predict(features[rows])
            estimator.observe(features[rows], predictions, admitted[rows], accepted[rows])
            estimator.end_step()
    assert estimator.num_refits == 8
    learned = np.concatenate([[estimator.slope.item()], estimator.intercepts.numpy()])
    assert np.abs(learned - oracle.coef_[0]).max() < 0.03


def test_state_goes_through_a_dict() -> None:
    estimator, other = OnlineAcceptanceEstimator(3, refit_interval=2), OnlineAcceptanceEstimator(3, refit_interval=2)
    for _ in range(3):
        one_round(estimator)
        estimator.end_step()
    other.load_state_dict(estimator.state_dict())
    for part in (estimator, other):
        one_round(part)
        part.end_step()
    assert other.num_refits == 2
    assert torch.equal(other.slope, estimator.slope)
    assert torch.equal(other.intercepts, estimator.intercepts)


def test_state_dict_is_a_copy() -> None:
    estimator = OnlineAcceptanceEstimator(2)
    state = estimator.state_dict()
    one_round(estimator)
    estimator.refit()
    assert state["slope"].item() == 0.5
    assert not state["counts"].any()


def test_refuses_the_state_of_another_k_and_an_incomplete_one() -> None:
    state = OnlineAcceptanceEstimator(4).state_dict()
    with pytest.raises(ConfigError, match="num_speculative_tokens = 3"):
        OnlineAcceptanceEstimator(3).load_state_dict(state)
    del state["g0"]
    with pytest.raises(ConfigError, match="lacks g0"):
        OnlineAcceptanceEstimator(4).load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_speculative_tokens", 0), ("refit_interval", 0), ("init_slope", -0.1), ("ridge", 0.0), ("damping", -1.0)],
)
def test_refuses_parameters_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        OnlineAcceptanceEstimator(**{"num_speculative_tokens": 2, name: value})
