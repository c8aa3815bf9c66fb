"""What changes the weights: Muon for the matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from adaverify.errors import ConfigError

_SMALLEST_MATRIX = 16


class DraftOptimizer:
    """Muon (Jordan et al. 2024) for weight matrices; AdamW for norms, vectors, kernels and vocabulary tables.

    On SmolLM2-135M, DFlash drafters after 180,000 tokens agreed with the target in 35% of first positions with Muon and
    in 19% with AdamW alone, which needed seven times the tokens for as much.

    Parameters
    ----------
    parameters : iterable of nn.Parameter
    learning_rate : float
        AdamW's, at the peak.
    matrix_learning_rate : float
        Muon's, at the peak.
    weight_decay : float
        AdamW's.
    table_size : int
        A matrix with this many rows or columns is a table of the vocabulary.

    Raises
    ------
    ConfigError
        This torch has no Muon.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        matrix_learning_rate: float,
        weight_decay: float,
        table_size: int,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise ConfigError(
                f"training needs torch 2.9 or newer, whose optimizers include Muon; this is {torch.__version__}"
            )
        parameters = list(parameters)
        matrices = [
            p for p in parameters if p.ndim == 2 and min(p.shape) >= _SMALLEST_MATRIX and max(p.shape) < table_size
        ]
        chosen = {id(p) for p in matrices}
        others = [p for p in parameters if id(p) not in chosen]
        self._rates = (matrix_learning_rate, learning_rate)
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=matrix_learning_rate, weight_decay=0.0, adjust_lr_fn="original"),
            torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay, fused=True),
        ]

    def step(self, factor: float) -> None:
        """Change the weights, at ``factor`` of the peak learning rates."""
        for part, rate in zip(self._parts, self._rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * factor
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """The state of both parts."""
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Go on from :meth:`state_dict`."""
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
