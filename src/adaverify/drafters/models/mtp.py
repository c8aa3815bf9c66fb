"""Multi-token prediction with one layer applied recurrently (FastMTP, arXiv 2509.18362)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from adaverify.drafters.models.base import DraftModel
from adaverify.drafters.models.config import DraftModelConfig
from adaverify.drafters.models.layers import layer_classes, paged_config
from adaverify.engine.attention import PagedContext


class MtpLayer(nn.Module):
    """A decoder layer between a projection of token and hidden state and a final norm."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        classes = layer_classes(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_layernorm = classes.norm(width, eps=eps)
        self.token_layernorm = classes.norm(width, eps=eps)
        self.input_proj = nn.Linear(2 * width, width, bias=False)
        self.self_attn = classes.attention(config, 0)
        # the target's first layer may have a window; this one never has
        self.self_attn.sliding_window = None  # type: ignore[assignment]
        self.mlp = classes.mlp(config)
        self.input_layernorm = classes.norm(width, eps=eps)
        self.post_attention_layernorm = classes.norm(width, eps=eps)
        self.final_layernorm = classes.norm(width, eps=eps)

    def attend(self, embeddings: Tensor, hidden: Tensor, **attention: Any) -> Tensor:
        """Hidden states [1, T, H] behind the attention, from ``embeddings`` and ``hidden`` of the same shape."""
        both = torch.cat([self.token_layernorm(embeddings), self.hidden_layernorm(hidden)], dim=-1)
        hidden = self.input_proj(both)
        return hidden + self.self_attn(self.input_layernorm(hidden), attention_mask=None, **attention)[0]

    def forward(self, embeddings: Tensor, hidden: Tensor, **attention: Any) -> Tensor:
        """Normed hidden states [1, T, H] from ``embeddings`` and ``hidden`` of the same shape."""
        hidden = self.attend(embeddings, hidden, **attention)
        hidden = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return self.final_layernorm(hidden)


class MtpDraftModel(DraftModel):
    """MTP: row j carries token j and a hidden state of position j - 1, and predicts token j + 1.

    The hidden state is the target's before its final norm as far as the target has gone, and the draft model's own
    after that. The layer attends to all positions before, whatever the target's layers do.
    """

    def __init__(self, config: DraftModelConfig, target_token_ids: Tensor | None = None) -> None:
        super().__init__(config, target_token_ids)
        layers = paged_config(config.layer_config)
        self.mtp_layers = nn.ModuleList([MtpLayer(layers)])
        self.rotary_emb = layer_classes(layers).rotary(layers)

    def project(self, hidden: Tensor) -> Tensor:
        """``hidden`` [T, H] as it is."""
        return hidden

    def forward(self, token_ids: Tensor, hidden: Tensor, positions: Tensor, paged: PagedContext) -> Tensor:
        """Compute the packed rows; their keys and values go to the store.

        Parameters
        ----------
        token_ids, positions : Tensor [1, T], int64
        hidden : Tensor [1, T, H]
            For the position before each row's: the target's, or what the row before gave.
        paged : PagedContext

        Returns
        -------
        Tensor [1, T, H]
            What the next row takes as ``hidden``, and :meth:`head` as it is.
        """
        embeddings = self.embed(token_ids)
        return self.mtp_layers[0](
            embeddings,
            hidden.to(embeddings.dtype),
            position_embeddings=self.rotary_emb(embeddings, positions),
            paged=paged,
        )

    def fill(self, token_ids: Tensor, hidden: Tensor, positions: Tensor, paged: PagedContext) -> None:
        """Only write the keys and values of the packed rows; parameters as for :meth:`forward`."""
        embeddings = self.embed(token_ids)
        layer: Any = self.mtp_layers[0]
        layer.attend(
            embeddings,
            hidden.to(embeddings.dtype),
            position_embeddings=self.rotary_emb(embeddings, positions),
            paged=paged.without_queries,
        )

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of what :meth:`forward` gave."""
        return self.unembed(hidden)
