"""The acceptance estimator for several features a draft: one slope for each, shared by all positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaverify.errors import ConfigError
from adaverify.policy.estimator import label_residuals
from adaverify.policy.refitting import RefittingEstimator
from adaverify.policy.requests import RequestRows


def solve_shared_slopes(
    a: Tensor, b: Tensor, c: Tensor, g0: Tensor, g1: Tensor, ridge: float, free: Tensor | None = None
) -> Tensor:
    """Slope steps of ``(H + ridge I) d = g`` for F shared slopes and K intercepts.

    ``H`` has ``a`` in its corner, ``b`` along the border and ``c`` on the rest of its diagonal; eliminating the
    intercepts leaves F equations. With F = 1 this is :func:`~adaverify.policy.estimator.solve_arrowhead`.

    Parameters
    ----------
    a : Tensor, shape [F, F]
        Sum of ``v f f'`` over all labels, with ``v = p (1 - p)``.
    b : Tensor, shape [K, F]
        Sums of ``v f``, by position.
    c : Tensor, shape [K]
        Sums of ``v``.
    g0 : Tensor, shape [F]
        Sum of ``r f``, with ``r = label - p``.
    g1 : Tensor, shape [K]
        Sums of ``r``.
    ridge : float
        Added to the diagonal; positive.
    free : Tensor, shape [F], bool, optional
        Slopes that may move; the others' steps are 0.

    Returns
    -------
    Tensor, shape [F]
        Not finite where the sums are not.
    """
    identity = torch.eye(len(g0), dtype=a.dtype, device=a.device)
    weighted = b / (c + ridge).unsqueeze(-1)
    matrix, right = a + ridge * identity - b.T @ weighted, g0 - weighted.T @ g1
    if free is not None:
        matrix = torch.where(free & free.unsqueeze(-1), matrix, identity)
        right = torch.where(free, right, 0.0)
    steps: Tensor = torch.linalg.solve_ex(matrix, right)[0]
    return steps


class SharedSlopesEstimator(RefittingEstimator):
    """Predict the acceptance of each draft from F features, and learn from every verification.

    ``p_i = sigmoid(slopes . f_i + intercept_i)``: F + K coefficients, fitted like those of
    :class:`~adaverify.policy.estimator.OnlineAcceptanceEstimator`, whose numbers it gives with F = 1. Memory is
    O(K F).

    Parameters
    ----------
    num_speculative_tokens : int
        K, drafts per request and round.
    init_slopes : sequence of float, length F
        Slopes before the first refit, 0 or more.
    init_intercept : float
    device, refit_interval, ridge, damping
        As for :class:`~adaverify.policy.estimator.OnlineAcceptanceEstimator`.

    Attributes
    ----------
    slopes : Tensor, shape [F], float32
    intercepts : Tensor, shape [K], float32
    a, b, c, g0, g1 : Tensor, float64
        Sums since the last refit; see :func:`solve_shared_slopes`.
    counts : Tensor, shape [K], float64
        Labels since the last refit, by position.
    num_refits : int

    Raises
    ------
    ConfigError
        A parameter is out of range.
    """

    COEFFICIENTS = ("slopes", "intercepts")

    def __init__(
        self,
        num_speculative_tokens: int,
        init_slopes: Sequence[float],
        init_intercept: float,
        device: torch.device | str = "cpu",
        refit_interval: int = 100,
        ridge: float = 1e-3,
        damping: float = 50.0,
    ) -> None:
        for name, value, valid in (
            ("num_speculative_tokens", num_speculative_tokens, num_speculative_tokens >= 1),
            ("init_slopes", init_slopes, len(init_slopes) >= 1 and min(init_slopes) >= 0),
            ("refit_interval", refit_interval, refit_interval >= 1),
            ("ridge", ridge, ridge > 0),
            ("damping", damping, damping >= 0),
        ):
            if not valid:
                raise ConfigError(f"{name} is {value}; the acceptance estimator needs a larger one")
        super().__init__(num_speculative_tokens, refit_interval, ridge, damping)
        K, F = num_speculative_tokens, len(init_slopes)
        self.slopes = torch.tensor(init_slopes, dtype=torch.float32, device=device)
        self.intercepts = torch.full((K,), init_intercept, dtype=torch.float32, device=device)
        shapes = {"a": (F, F), "b": (K, F), "c": (K,), "g0": (F,), "g1": (K,), "counts": (K,)}
        for name, shape in shapes.items():
            setattr(self, name, torch.zeros(shape, dtype=torch.float64, device=device))

    a: Tensor
    b: Tensor
    c: Tensor
    g0: Tensor
    g1: Tensor
    counts: Tensor

    @property
    def slope(self) -> Tensor:
        """Slope of the first feature, 0-dim."""
        return self.slopes[0]

    def predict(self, features: Tensor, requests: RequestRows | None = None) -> Tensor:
        """Give acceptance probabilities, shape [..., K], of features, shape [..., K, F]."""
        return torch.sigmoid((features * self.slopes).sum(dim=-1) + self.intercepts)

    def predict_at(self, features: Tensor, position: int, requests: RequestRows | None = None) -> Tensor:
        """Give acceptance probabilities, shape [...], of features, shape [..., F], all of one position (from 0)."""
        return torch.sigmoid((features * self.slopes).sum(dim=-1) + self.intercepts[position])

    def observe(
        self,
        features: Tensor,
        predictions: Tensor,
        num_admitted: Tensor,
        num_accepted: Tensor,
        mask: Tensor | None = None,
        requests: RequestRows | None = None,
    ) -> None:
        """Add the outcome of one verification to the sums.

        Parameters
        ----------
        features : Tensor, shape [R, K, F]
            As they were when the drafts were made; a draft that has one that is not finite adds nothing.
        predictions : Tensor, shape [R, K]
        num_admitted, num_accepted, mask, requests
            As for :meth:`OnlineAcceptanceEstimator.observe`, which says what has a label.
        """
        usable = features.isfinite().all(dim=-1)
        labelled, p, residual = label_residuals(usable, predictions, num_admitted, num_accepted, mask)
        f = torch.where(labelled.unsqueeze(-1), features, 0.0).double()
        weighted = f * (p * (1 - p)).unsqueeze(-1)
        self.a += torch.einsum("rkf,rkg->fg", weighted, f)
        self.b += weighted.sum(dim=0)
        self.c += (p * (1 - p)).sum(dim=0)
        self.g0 += (f * residual.unsqueeze(-1)).sum(dim=(0, 1))
        self.g1 += residual.sum(dim=0)
        self.counts += labelled.sum(dim=0)

    def refit(self) -> None:
        """Take one damped Newton step from the sums, then clear them.

        A slope that the step would make negative stays where it is, and the others are solved for again; steps that
        are not finite are refused. The intercepts follow the slope steps that were taken.
        """
        steps = self._slope_steps()
        self.slopes += steps
        intercept_steps = (self.g1 - self.b @ steps) / (self.c + self.ridge) * self._damp(self.counts)
        self.intercepts += torch.where(intercept_steps.isfinite(), intercept_steps, 0.0)
        self._finish_refit()

    def _slope_steps(self) -> Tensor:
        """Damped steps, shape [F], after which no slope is negative."""
        sums = (self.a, self.b, self.c, self.g0, self.g1)
        free = torch.ones_like(self.slopes, dtype=torch.bool)
        steps = torch.zeros_like(self.g0)
        # each pass holds at least one more slope, or none
        for _ in range(len(free) + 1):
            steps = solve_shared_slopes(*sums, self.ridge, free) * self._damp(self.counts.sum())
            # a comparison with NaN is false
            free = free & (self.slopes + steps >= 0) & steps.isfinite()
        return torch.where(free, steps, 0.0)

    @property
    def _dimensions(self) -> str:
        """See :class:`RefittingEstimator`."""
        return f"num_speculative_tokens = {self.num_speculative_tokens} and {len(self.slopes)} features need"
