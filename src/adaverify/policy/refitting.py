"""What online estimators share: sums that every refit uses up, the count of steps, and a state that can be kept."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from adaverify.errors import ConfigError


class RefittingEstimator:
    """Base of the estimators that gather sums and refit after every ``refit_interval`` steps.

    Attributes
    ----------
    COEFFICIENTS, SUMS : tuple of str
        Names of the tensors that are fitted, and of those that :meth:`_finish_refit` clears.
    """

    COEFFICIENTS: ClassVar[tuple[str, ...]]
    SUMS: ClassVar[tuple[str, ...]] = ("a", "b", "c", "g0", "g1", "counts")

    def __init__(self, num_speculative_tokens: int, refit_interval: int, ridge: float, damping: float) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self.refit_interval = refit_interval
        self.ridge = ridge
        self.damping = damping
        self.num_refits = 0
        self._steps_since_refit = 0

    @property
    def steps_ahead(self) -> int:
        """Steps over which predictions stay as they are: those between two refits."""
        return self.refit_interval

    def start(self, slots: Tensor) -> None:
        """New requests have these slots; the fit knows of no request."""

    def expected(self, greedy: Tensor) -> Tensor:
        """Confidences of new requests, shape [N, K]: as in the paper, they count as certain."""
        return torch.ones(len(greedy), self.num_speculative_tokens, device=greedy.device)

    def end_step(self) -> None:
        """Count one engine step and refit when ``refit_interval`` of them have passed."""
        self._steps_since_refit += 1
        if self._steps_since_refit >= self.refit_interval:
            self.refit()

    def refit(self) -> None:
        """Take one damped Newton step from the sums, then clear them."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Everything learned so far: coefficients, sums and counters, as copies."""
        tensors = {name: getattr(self, name).clone() for name in (*self.COEFFICIENTS, *self.SUMS)}
        return {**tensors, "num_refits": self.num_refits, "steps_since_refit": self._steps_since_refit}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned, in place.

        Raises
        ------
        ConfigError
            A key is missing or a tensor has another shape, as from another ``num_speculative_tokens``.
        """
        names = (*self.COEFFICIENTS, *self.SUMS)
        missing = [name for name in (*names, "num_refits", "steps_since_refit") if name not in state]
        if missing:
            raise ConfigError(f"estimator state lacks {', '.join(missing)}; pass what state_dict() returned")
        for name in names:
            own = tuple(getattr(self, name).shape)
            if state[name].shape != own:
                raise ConfigError(
                    f"estimator state: {name} has shape {tuple(state[name].shape)}, but {self._dimensions} {own}"
                )
        for name in names:
            getattr(self, name).copy_(state[name])
        self.num_refits = int(state["num_refits"])
        self._steps_since_refit = int(state["steps_since_refit"])

    @property
    def _dimensions(self) -> str:
        """What the tensors' shapes follow from, as the beginning of a complaint."""
        return f"num_speculative_tokens = {self.num_speculative_tokens} needs"

    def _damp(self, counts: Tensor) -> Tensor:
        return counts / (counts + self.damping)

    def _finish_refit(self) -> None:
        for name in self.SUMS:
            getattr(self, name).zero_()
        self._steps_since_refit = 0
        self.num_refits += 1
