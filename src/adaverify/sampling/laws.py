"""The laws that drafts were drawn from, over the whole vocabulary or only over the tokens that can be drafted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DraftLaws:
    """M distributions over W tokens each; all other tokens have probability 0.

    Attributes
    ----------
    q : Tensor [M, W] float32
    columns : Tensor [W] or [M, W] int64, optional
        Token of each column: the same for all rows (a reduced draft vocabulary, ascending) or each row's own
        (candidates). None: column v is token v.
    """

    q: Tensor
    columns: Tensor | None = None

    @classmethod
    def wrap(cls, q: Tensor | DraftLaws | None) -> DraftLaws | None:
        """Plain distributions over the whole vocabulary as laws."""
        return cls(q) if isinstance(q, Tensor) else q

    def fits(self, vocab_size: int) -> bool:
        """Whether the columns are tokens of a vocabulary of this size, as far as the shapes tell."""
        width = self.q.shape[-1]
        return width == vocab_size if self.columns is None else width == self.columns.shape[-1] and width <= vocab_size

    def of(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Probability of each of ``tokens`` [...] under the law in its row [...], float32."""
        if self.columns is None:
            return self.q[rows, tokens]
        if self.columns.ndim == 1:
            index = torch.searchsorted(self.columns, tokens).clamp_(max=len(self.columns) - 1)
            return torch.where(self.columns[index] == tokens, self.q[rows, index], 0.0)
        return torch.where(self.columns[rows] == tokens.unsqueeze(-1), self.q[rows], 0.0).sum(dim=-1)

    def subtract_from(self, weights: Tensor, rows: Tensor) -> None:
        """Take law ``rows[n]`` off ``weights[n]`` [N, V], in place."""
        if self.columns is None:
            weights -= self.q[rows]
        else:
            columns = self.columns.expand(len(self.q), -1)[rows]
            weights.scatter_add_(-1, columns, -self.q[rows])
