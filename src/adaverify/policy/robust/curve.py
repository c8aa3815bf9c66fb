"""What the shape of the fitted law misses: a curve from predicted to observed log-odds, the same for all requests."""

from __future__ import annotations

import torch
from torch import Tensor

KNOTS = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)
# No knot moves further: the curve is for shape, and what it learns while the law itself is wrong must not last. Less
# than half the distance of two knots also keeps a higher prediction the higher one.
MAX_CORRECTION = 0.2
# Each knot starts at 0 as if that were known from so much p (1 - p): some 250 labels.
PRIOR_INFORMATION = 60.0
_EPS = 1e-6


class CalibrationCurve:
    """Corrects predictions by a curve that is linear between knots.

    Drafters that pick from a few candidates, for one, accept less where they are sure, and more where they are not,
    than any law of the log-odds of ``q_max`` says. ``logit(p) + sum_k c_k h_k(logit(p))`` with hat functions ``h`` at
    the knots mends that whatever its cause. The corrections ``c`` follow the residuals of the predictions made, one
    Newton step after each verification; what is said of them is forgotten, and they fall back to 0.

    Parameters
    ----------
    horizon : float
        Labels after which a label's weight has fallen to 1/e.
    device : torch.device or str

    Attributes
    ----------
    corrections : Tensor, shape [7], float64
        Log-odds added at each knot.
    information : Tensor, shape [7, 7], float64
        Sum of ``p (1 - p) h h^T`` over the labels remembered.
    """

    def __init__(self, horizon: float, device: torch.device | str) -> None:
        self.horizon = horizon
        self._knots = torch.tensor(KNOTS, dtype=torch.float64, device=device)
        self._prior = PRIOR_INFORMATION * torch.eye(len(KNOTS), dtype=torch.float64, device=device)
        self.corrections = torch.zeros_like(self._knots)
        self.information = torch.zeros_like(self._prior)

    def correct(self, chances: Tensor) -> Tensor:
        """Corrected chances of acceptance, of any shape; NaN stays NaN."""
        return torch.sigmoid(self.correct_scores(torch.logit(chances.double(), eps=_EPS)))

    def correct_scores(self, scores: Tensor) -> Tensor:
        """Corrected log-odds of acceptance, of any shape."""
        return scores + self._weights(scores, self._knots) @ self.corrections

    def observe(self, predictions: Tensor, labelled: Tensor, residual: Tensor) -> None:
        """Take in the outcome of one verification.

        Parameters
        ----------
        predictions : Tensor, shape [R, K]
            As :meth:`correct` gave them.
        labelled : Tensor, shape [R, K], bool
        residual : Tensor, shape [R, K]
            Outcome - p of the labelled.
        """
        p = torch.where(labelled, predictions, 0.5).double()
        # between the same two knots, as far along as before the correction: the knots have moved with it
        weights = self._weights(torch.logit(p, eps=_EPS), self._knots + self.corrections).flatten(0, 1)
        told = torch.where(labelled, p * (1 - p), 0.0).view(-1, 1)
        missed = torch.where(labelled, residual, 0.0).double().view(-1)
        kept = torch.exp(-labelled.sum() / self.horizon)
        self.information.mul_(kept).add_(weights.mT @ (told * weights))
        gradient = weights.mT @ missed - (1 - kept) * (self._prior @ self.corrections)
        step = torch.linalg.solve_ex(self.information + self._prior, gradient).result
        self.corrections.add_(step).clamp_(-MAX_CORRECTION, MAX_CORRECTION)

    def _weights(self, scores: Tensor, knots: Tensor) -> Tensor:
        """Hat functions [..., 7] at ``scores`` [...]: beside the outermost knots these alone count."""
        inside = torch.minimum(torch.maximum(scores.nan_to_num(0.0), knots[0]), knots[-1])
        left = torch.searchsorted(knots, inside, right=True).clamp(1, len(KNOTS) - 1) - 1
        share = (inside - knots[left]) / (knots[left + 1] - knots[left])
        columns = torch.arange(len(KNOTS), device=scores.device)
        return (1 - (columns - (left + share).unsqueeze(-1)).abs()).clamp(min=0.0)
