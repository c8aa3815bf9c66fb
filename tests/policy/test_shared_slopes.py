from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from adaverify.errors import ConfigError
from adaverify.policy import OnlineAcceptanceEstimator, SharedSlopesEstimator, solve_arrowhead, solve_shared_slopes


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def labels(rows: int, K: int, slopes: tuple[float, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Features [rows, K, F], accepted counts and admitted counts of a drafter whose law is the estimator's."""
    features = torch.randn(rows, K, len(slopes), generator=generator()) + 0.5
    chance = torch.sigmoid((features * torch.tensor(slopes)).sum(-1) + torch.linspace(0.4, -0.6, K))
    hit = torch.rand(rows, K, generator=generator(1)) < chance
    admitted = torch.randint(1, K + 1, (rows,), generator=generator())
    return features, torch.minimum(hit.long().cumprod(dim=1).sum(dim=1), admitted), admitted


def test_with_one_feature_it_is_the_estimator_of_the_paper() -> None:
    features, accepted, admitted = labels(900, 4, (0.7,))
    several = SharedSlopesEstimator(4, [0.5], -0.2, refit_interval=3)
    single = OnlineAcceptanceEstimator(4, refit_interval=3)
    mask = torch.rand(900, generator=generator()) < 0.8
    features[5, 0], features[9, 1] = torch.nan, torch.inf
    for rows in torch.arange(900).split(100):
        f = features[rows]
        torch.testing.assert_close(several.predict(f), single.predict(f[..., 0]), equal_nan=True)
        torch.testing.assert_close(several.predict_at(f[:, 1], 1), single.predict_at(f[:, 1, 0], 1), equal_nan=True)
        for estimator, read in ((several, f), (single, f[..., 0])):
            estimator.observe(read, estimator.predict(read), admitted[rows], accepted[rows], mask[rows])
        torch.testing.assert_close(several.counts, single.counts)
        for estimator in (several, single):
            estimator.end_step()
    assert several.num_refits == single.num_refits == 3
    torch.testing.assert_close(several.slope, single.slope)
    torch.testing.assert_close(several.intercepts, single.intercepts)


@pytest.mark.parametrize("F", [1, 2, 3])
@pytest.mark.parametrize("K", [1, 4, 16])
def test_the_solve_is_that_of_the_whole_system(K: int, F: int) -> None:
    f = torch.randn(200, K, F, generator=generator(), dtype=torch.float64) * 3
    v = torch.rand(200, K, generator=generator(), dtype=torch.float64) * 0.25
    r = torch.rand(200, K, generator=generator(), dtype=torch.float64) - 0.5
    labelled = torch.rand(200, K, generator=generator()) < torch.linspace(1, 0, K)
    v, r = v * labelled, r * labelled
    a, b = torch.einsum("nk,nkf,nkg->fg", v, f, f), torch.einsum("nk,nkf->kf", v, f)
    g0, g1, c = torch.einsum("nk,nkf->f", r, f), r.sum(0), v.sum(0)
    dense = torch.block_diag(a, torch.diag(c)) + 1e-3 * torch.eye(F + K, dtype=torch.float64)
    dense[:F, F:], dense[F:, :F] = b.T, b
    expected = torch.linalg.solve(dense, torch.cat([g0, g1]))
    steps = solve_shared_slopes(a, b, c, g0, g1, 1e-3)
    torch.testing.assert_close(steps, expected[:F], rtol=1e-6, atol=1e-12)
    if F == 1:
        one = solve_arrowhead((v * f[..., 0] ** 2).sum(0), b[:, 0], c, (r * f[..., 0]).sum(0), g1, 1e-3)[0]
        torch.testing.assert_close(steps[0], one)


def test_agrees_with_scikit_learn_on_two_features() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is the oracle")
    K = 3
    features, accepted, admitted = labels(30_000, K, (0.3, 0.9))
    positions = torch.arange(K)
    labelled = (positions <= accepted[:, None]) & (positions < admitted[:, None])
    design = torch.cat([features[labelled], torch.eye(K).expand(len(features), K, K)[labelled]], dim=1).numpy()
    oracle = linear_model.LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-8, max_iter=1000)
    oracle.fit(design, (positions < accepted[:, None])[labelled].numpy())
    estimator = SharedSlopesEstimator(K, [0.25, 0.25], 0.0, refit_interval=30)
    for _ in range(8):
        for rows in torch.arange(len(features)).split(1_000):
            f = features[rows]
            estimator.observe(f, estimator.predict(f), admitted[rows], accepted[rows])
            estimator.end_step()
    learned = torch.cat([estimator.slopes, estimator.intercepts]).numpy()
    assert np.abs(learned - oracle.coef_[0]).max() < 0.03


def test_a_slope_held_at_its_place_leaves_the_others_their_best() -> None:
    """The second feature predicts the wrong way round: its slope stays, and the first moves as if it were alone."""
    features, accepted, admitted = labels(4000, 2, (1.0, -1.0))
    held = SharedSlopesEstimator(2, [0.5, 0.0], 0.0, damping=0.0)
    alone = SharedSlopesEstimator(2, [0.5], 0.0, damping=0.0)
    held.observe(features, held.predict(features), admitted, accepted)
    alone.observe(features[..., :1], alone.predict(features[..., :1]), admitted, accepted)
    for estimator in (held, alone):
        estimator.refit()
    assert held.slopes[1] == 0
    assert held.slopes[0] > 0.6
    torch.testing.assert_close(held.slopes[:1], alone.slopes)
    torch.testing.assert_close(held.intercepts, alone.intercepts)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_steps_that_are_not_finite_are_refused(bad: float) -> None:
    features, accepted, admitted = labels(200, 2, (0.5, 0.5))
    estimator = SharedSlopesEstimator(2, [0.5, 0.25], -0.2)
    estimator.observe(features, estimator.predict(features), admitted, accepted)
    estimator.g0[1] = bad
    estimator.refit()
    assert estimator.slopes.tolist() == [0.5, 0.25]
    assert estimator.intercepts.isfinite().all()
    assert all(not getattr(estimator, name).any() for name in SharedSlopesEstimator.SUMS)


def test_drafts_with_a_feature_that_is_not_finite_add_nothing() -> None:
    estimator = SharedSlopesEstimator(1, [0.5, 0.25], -0.2)
    features = torch.tensor([[[1.0, 2.0]], [[float("nan"), 1.0]], [[1.0, float("inf")]]])
    one = torch.ones(3, dtype=torch.long)
    estimator.observe(features, torch.full((3, 1), 0.5), one, one)
    assert estimator.counts.tolist() == [1]
    assert estimator.b.tolist() == [[0.25, 0.5]]
    assert estimator.a.tolist() == [[0.25, 0.5], [0.5, 1.0]]


def test_state_goes_through_a_dict_and_fits_its_own_kind_only() -> None:
    features, accepted, admitted = labels(200, 3, (0.5, 0.5))
    estimator, other = (SharedSlopesEstimator(3, [0.5, 0.2], -0.2, refit_interval=2) for _ in range(2))
    for _ in range(3):
        estimator.observe(features, estimator.predict(features), admitted, accepted)
        estimator.end_step()
    other.load_state_dict(estimator.state_dict())
    for each in (estimator, other):
        each.end_step()
    assert other.num_refits == 2
    assert torch.equal(other.slopes, estimator.slopes)
    assert torch.equal(other.intercepts, estimator.intercepts)
    with pytest.raises(ConfigError, match="1 features"):
        SharedSlopesEstimator(3, [0.5], 0.0).load_state_dict(estimator.state_dict())
    state = estimator.state_dict()
    del state["slopes"]
    with pytest.raises(ConfigError, match="lacks slopes"):
        other.load_state_dict(state)


@pytest.mark.parametrize("wrong", [{"num_speculative_tokens": 0}, {"init_slopes": []}, {"init_slopes": [0.1, -0.1]}])
def test_refuses_parameters_out_of_range(wrong: dict[str, object]) -> None:
    given: dict[str, object] = {"num_speculative_tokens": 2, "init_slopes": [0.5], "init_intercept": 0.0}
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SharedSlopesEstimator(**(given | wrong))  # type: ignore[arg-type]


def test_nothing_is_read_on_the_host() -> None:
    estimator = SharedSlopesEstimator(2, [0.5, 0.2], -0.2, refit_interval=1)
    with FakeTensorMode() as mode:
        for name, value in list(vars(estimator).items()):
            if isinstance(value, Tensor):
                setattr(estimator, name, mode.from_tensor(value))
        features, counts = torch.randn(5, 2, 2), torch.ones(5, dtype=torch.long)
        estimator.observe(features, estimator.predict(features), counts, counts, counts > 0)
        estimator.end_step()
    assert estimator.num_refits == 1
    assert estimator.slopes.shape == (2,)
