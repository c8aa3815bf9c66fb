"""What every acceptance estimator does: the engine and the lab know no more of it."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from adaverify.policy.requests import RequestRows


class AcceptanceEstimator(Protocol):
    """Predicts the acceptance of drafts, and learns from what verification made of them."""

    num_refits: int

    @property
    def steps_ahead(self) -> int:
        """Steps over which predictions stay as they are, whatever is observed."""

    @property
    def slope(self) -> Tensor:
        """Slope of the log-odds of q_max, 0-dim, to look at."""

    @property
    def intercepts(self) -> Tensor:
        """Intercept of each position, shape [K], to look at."""

    def start(self, slots: Tensor) -> None:
        """New requests have these slots, shape [N], int64."""

    def expected(self, greedy: Tensor) -> Tensor:
        """Confidences, shape [N, K], that new requests count with until their first drafts are scored."""

    def predict(self, features: Tensor, requests: RequestRows | None = None) -> Tensor:
        """Chance of acceptance of each draft, shape [R, K], given that the ones before it are accepted."""

    def predict_at(self, features: Tensor, position: int, requests: RequestRows | None = None) -> Tensor:
        """Chance of acceptance of each draft of one position, shape [R]."""

    def observe(
        self,
        features: Tensor,
        predictions: Tensor,
        num_admitted: Tensor,
        num_accepted: Tensor,
        mask: Tensor | None = None,
        requests: RequestRows | None = None,
    ) -> None:
        """Take in the outcome of one verification."""

    def end_step(self) -> None:
        """Count one step; refit when it is time."""

    def state_dict(self) -> dict[str, Any]:
        """Everything learned so far, as copies."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned."""
