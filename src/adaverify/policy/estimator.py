"""The online acceptance estimator: a logistic fit that verification's own outcomes feed."""

from __future__ import annotations

import torch
from torch import Tensor

from adaverify.errors import ConfigError
from adaverify.policy.refitting import RefittingEstimator
from adaverify.policy.requests import RequestRows


def solve_arrowhead(a: Tensor, b: Tensor, c: Tensor, g0: Tensor, g1: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Solve ``(H + ridge I) d = g`` for one shared slope and K intercepts, in closed form.

    ``H`` has ``sum(a)`` in its corner, ``b`` along its first row and column and ``c`` on the rest of its
    diagonal; eliminating the intercepts leaves one scalar equation.

    Parameters
    ----------
    a, b, c : Tensor, shape [K]
        Sums over a round, by position: ``v f^2``, ``v f`` and ``v``, with ``v = p (1 - p)``.
    g0, g1 : Tensor, shape [K]
        Sums of ``r f`` and ``r``, with ``r = label - p``.
    ridge : float
        Added to the diagonal; positive.

    Returns
    -------
    slope_step : Tensor, 0-dim
    intercept_steps : Tensor, shape [K]
    """
    diagonal = c + ridge
    slope_step = (g0 - b * g1 / diagonal).sum() / (ridge + (a - b * b / diagonal).sum())
    return slope_step, solve_intercepts(slope_step, b, c, g1, ridge)


def solve_intercepts(slope_step: Tensor, b: Tensor, c: Tensor, g1: Tensor, ridge: float) -> Tensor:
    """Intercept steps, shape [K], of the arrowhead system once the slope's step is given."""
    return (g1 - b * slope_step) / (c + ridge)


def label_residuals(
    usable: Tensor, predictions: Tensor, num_admitted: Tensor, num_accepted: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Labels of one verification, and how far the predictions were from them.

    Accepted drafts get label 1 and the first rejected one label 0; nothing else has a label.

    Parameters
    ----------
    usable : Tensor, shape [R, K], bool
        Drafts whose features are finite.
    predictions, num_admitted, num_accepted, mask
        As for :meth:`OnlineAcceptanceEstimator.observe`.

    Returns
    -------
    labelled : Tensor, shape [R, K], bool
    p, residual : Tensor, shape [R, K], float64
        Prediction and ``label - p``; 0 without a label.
    """
    positions = torch.arange(usable.shape[1], device=usable.device)
    accepted = positions < num_accepted[:, None]
    labelled = (positions <= num_accepted[:, None]) & (positions < num_admitted[:, None])
    labelled = labelled & usable & predictions.isfinite()
    if mask is not None:
        labelled = labelled & mask[:, None]
    p = torch.where(labelled, predictions, 0.0).double()
    return labelled, p, torch.where(labelled, accepted.double() - p, 0.0)


class OnlineAcceptanceEstimator(RefittingEstimator):
    """Predict the acceptance of each draft, and learn from every verification.

    ``p_i = sigmoid(slope * f_i + intercept_i)`` with f the log-odds of q_max: K + 1 coefficients, fitted by
    iteratively reweighted least squares. Memory is O(K) whatever the traffic. Source: "Adaptive Verification
    Without a Confidence Head" (vLLM blog, 2026-10-14) and vLLM pull request 52228.

    Parameters
    ----------
    num_speculative_tokens : int
        K, drafts per request and round.
    device : torch.device or str
    refit_interval : int
        Steps between two refits.
    init_slope, init_intercept : float
        Coefficients before the first refit.
    ridge : float
        Ridge of each solve.
    damping : float
        A step learned from n labels is scaled by ``n / (n + damping)``.

    Attributes
    ----------
    slope : Tensor, 0-dim, float32
    intercepts : Tensor, shape [K], float32
    a, b, c, g0, g1 : Tensor, shape [K], float64
        Sums since the last refit; see :func:`solve_arrowhead`.
    counts : Tensor, shape [K], float64
        Labels since the last refit, by position.
    num_refits : int

    Raises
    ------
    ConfigError
        A parameter is out of range.
    """

    COEFFICIENTS = ("slope", "intercepts")

    def __init__(
        self,
        num_speculative_tokens: int,
        device: torch.device | str = "cpu",
        refit_interval: int = 100,
        init_slope: float = 0.5,
        init_intercept: float = -0.2,
        ridge: float = 1e-3,
        damping: float = 50.0,
    ) -> None:
        for name, value, valid in (
            ("num_speculative_tokens", num_speculative_tokens, num_speculative_tokens >= 1),
            ("refit_interval", refit_interval, refit_interval >= 1),
            ("init_slope", init_slope, init_slope >= 0),
            ("ridge", ridge, ridge > 0),
            ("damping", damping, damping >= 0),
        ):
            if not valid:
                raise ConfigError(f"{name} is {value}; the acceptance estimator needs a larger one")
        super().__init__(num_speculative_tokens, refit_interval, ridge, damping)
        K = num_speculative_tokens
        self.slope = torch.full((), init_slope, dtype=torch.float32, device=device)
        self.intercepts = torch.full((K,), init_intercept, dtype=torch.float32, device=device)
        self.a, self.b, self.c, self.g0, self.g1, self.counts = torch.zeros(
            6, K, dtype=torch.float64, device=device
        ).unbind()

    def predict(self, features: Tensor, requests: RequestRows | None = None) -> Tensor:
        """Give acceptance probabilities, shape [..., K], of features, shape [..., K], one column a position."""
        return torch.sigmoid(self.slope * features + self.intercepts)

    def predict_at(self, features: Tensor, position: int, requests: RequestRows | None = None) -> Tensor:
        """Give acceptance probabilities, shape [...], of features, shape [...], all of one position (from 0)."""
        return torch.sigmoid(self.slope * features + self.intercepts[position])

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

        Accepted drafts get label 1 and the first rejected one label 0. What follows a rejection, and what was
        never admitted, has no label. A draft whose feature or prediction is not finite adds nothing.

        Parameters
        ----------
        features, predictions : Tensor, shape [R, K]
            As they were when the drafts were made.
        num_admitted, num_accepted : Tensor, shape [R], integer
            Drafts verified and drafts accepted.
        mask : Tensor, shape [R], bool, optional
            Requests whose labels count; all by default.
        requests : RequestRows, optional
            Not looked at: all requests have one law.
        """
        usable = features.isfinite()
        labelled, p, residual = label_residuals(usable, predictions, num_admitted, num_accepted, mask)
        # Selecting, not multiplying: zero times NaN would still poison the sums.
        f = torch.where(labelled, features, 0.0).double()
        variance = p * (1 - p)
        self.a += (variance * f * f).sum(dim=0)
        self.b += (variance * f).sum(dim=0)
        self.c += variance.sum(dim=0)
        self.g0 += (residual * f).sum(dim=0)
        self.g1 += residual.sum(dim=0)
        self.counts += labelled.sum(dim=0)

    def refit(self) -> None:
        """Take one damped Newton step from the sums, then clear them.

        A slope step that is not finite or would make the slope negative is refused; the intercepts follow
        the slope step that was taken.
        """
        slope_step, _ = solve_arrowhead(self.a, self.b, self.c, self.g0, self.g1, self.ridge)
        slope_step = slope_step * self._damp(self.counts.sum())
        taken = slope_step.isfinite() & (self.slope + slope_step >= 0)
        slope_step = torch.where(taken, slope_step, 0.0)
        intercept_steps = solve_intercepts(slope_step, self.b, self.c, self.g1, self.ridge) * self._damp(self.counts)
        self.slope += slope_step
        self.intercepts += torch.where(intercept_steps.isfinite(), intercept_steps, 0.0)
        self._finish_refit()
