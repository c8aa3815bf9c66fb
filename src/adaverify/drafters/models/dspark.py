"""DSpark (arXiv 2607.05147): DFlash with a bias from the token before, and a forecast of each draft's acceptance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adaverify.drafters.models.config import DraftModelConfig
from adaverify.drafters.models.dflash import DFlashDraftModel


class MarkovHead(nn.Module):
    """A low-rank bias of the draft logits that depends on the token before.

    ``vanilla`` is the plain product of two matrices; ``gated`` weights its rank by the hidden state; ``rnn`` also
    remembers the block's earlier positions.
    """

    def __init__(self, config: DraftModelConfig) -> None:
        super().__init__()
        rank, width = config.markov_rank, config.hidden_size
        self.kind = config.markov_head_type
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        nn.init.normal_(self.markov_w1.weight, std=0.01)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(width + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + width, 3 * rank)

    def forward(self, previous: Tensor, hidden: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Bias [R, Vd] and state [R, rank] of one position; see :meth:`DSparkDraftModel.markov_bias`."""
        code = self.markov_w1(previous)
        hidden = hidden.to(code.dtype)
        if self.kind == "gated":
            code = code * torch.sigmoid(self.gate_proj(torch.cat([hidden, code], dim=-1)))
        elif self.kind == "rnn":
            state = torch.zeros_like(code) if state is None else state
            keep, new, code = self.joint_proj(torch.cat([state, code, hidden], dim=-1)).chunk(3, dim=-1)
            keep = torch.sigmoid(keep)
            state = keep * state + (1 - keep) * torch.tanh(new)
            code = torch.tanh(code)
        return self.markov_w2(code), state


class ConfidenceHead(nn.Module):
    """Linear, from the hidden state and possibly the Markov embedding of the token before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class DSparkDraftModel(DFlashDraftModel):
    """DSpark: drafts are drawn one by one, each from :meth:`head` plus :meth:`markov_bias`.

    Attributes
    ----------
    markov_head : MarkovHead, optional
    confidence_head : ConfidenceHead, optional
        Its parameters are float32 whatever the model's dtype.
    """

    def __init__(self, config: DraftModelConfig, target_token_ids: Tensor | None = None) -> None:
        super().__init__(config, target_token_ids)
        self.markov_head = MarkovHead(config) if config.markov_rank > 0 else None
        width = config.hidden_size + (config.markov_rank if config.confidence_head_with_markov else 0)
        self.confidence_head = ConfidenceHead(width) if config.enable_confidence_head else None

    def markov_bias(
        self, previous_token_ids: Tensor, hidden: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """What the token before adds to the logits of one block position.

        Parameters
        ----------
        previous_token_ids : Tensor [R], int64
            The target's ids of the tokens before those to draft.
        hidden : Tensor [R, H]
            The rows that draft, of :meth:`forward`.
        state : Tensor [R, rank], optional
            What the call for the row before gave, from the block's first row on; None for that one.

        Returns
        -------
        bias : Tensor [R, Vd], optional
            None if there is no Markov head.
        state : Tensor [R, rank], optional
        """
        return (None, None) if self.markov_head is None else self.markov_head(previous_token_ids, hidden, state)

    def confidence(self, hidden: Tensor, previous_token_ids: Tensor) -> Tensor | None:
        """Log-odds that the draft of one block position is accepted, before any temperature.

        Parameters
        ----------
        hidden : Tensor [R, H]
        previous_token_ids : Tensor [R], int64

        Returns
        -------
        Tensor [R], float32, optional
            None if there is no such head.
        """
        if self.confidence_head is None:
            return None
        features = hidden.float()
        if self.config.confidence_head_with_markov:
            assert self.markov_head is not None
            features = torch.cat([features, self.markov_head.markov_w1(previous_token_ids).float()], dim=-1)
        proj = self.confidence_head.proj
        return F.linear(features, proj.weight.float(), proj.bias.float()).squeeze(-1)
