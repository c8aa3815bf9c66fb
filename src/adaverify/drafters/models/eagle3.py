"""EAGLE-3 (arXiv 2503.01840): a small autoregressive model over several of the target's hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from adaverify.drafters.models.base import DraftModel
from adaverify.drafters.models.config import DraftModelConfig
from adaverify.drafters.models.layers import layer_classes, paged_config, window_kwargs
from adaverify.engine.attention import PagedContext


class Eagle3FirstLayer(nn.Module):
    """A decoder layer whose attention reads the token's embedding beside the hidden state."""

    def __init__(self, config: PretrainedConfig, norm_before_residual: bool) -> None:
        super().__init__()
        classes = layer_classes(config)
        self.norm_before_residual = norm_before_residual
        self.self_attn = classes.attention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * narrow.in_features, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)
        self.mlp = classes.mlp(config)
        self.input_layernorm = classes.norm(config.hidden_size, eps=config.rms_norm_eps)
        self.hidden_norm = classes.norm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = classes.norm(config.hidden_size, eps=config.rms_norm_eps)

    def attend(self, embeddings: Tensor, hidden: Tensor, **attention: Any) -> Tensor:
        """Hidden states [1, T, H] behind the attention, from ``embeddings`` and ``hidden`` of the same shape."""
        normed = self.hidden_norm(hidden)
        residual: Tensor = normed if self.norm_before_residual else hidden
        both = torch.cat([self.input_layernorm(embeddings), normed], dim=-1)
        return residual + self.self_attn(both, attention_mask=None, **attention)[0]

    def forward(self, embeddings: Tensor, hidden: Tensor, **attention: Any) -> Tensor:
        """Hidden states [1, T, H] from ``embeddings`` and ``hidden`` of the same shape."""
        hidden = self.attend(embeddings, hidden, **attention)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Eagle3DraftModel(DraftModel):
    """EAGLE-3: row j carries token j and a hidden state for position j - 1, and predicts token j + 1.

    The hidden state is the target's, projected, as far as the target has gone, and the draft model's own after that.
    """

    def __init__(self, config: DraftModelConfig, target_token_ids: Tensor | None = None) -> None:
        super().__init__(config, target_token_ids)
        layers = paged_config(config.layer_config)
        classes = layer_classes(layers)
        taps, width, eps = len(config.tap_layer_ids), config.target_hidden_size, layers.rms_norm_eps
        self.input_norm = classes.norm(taps * width, eps=eps) if config.norm_before_fc else None
        norms = [classes.norm(width, eps=eps) for _ in range(taps)]
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.fc = nn.Linear(taps * width, config.hidden_size, bias=False)
        self.layers = nn.ModuleList(
            [
                Eagle3FirstLayer(layers, config.norm_before_residual),
                *(classes.decoder(layers, i) for i in range(1, config.num_layers)),
            ]
        )
        self.norm = classes.norm(config.hidden_size, eps=eps)
        self.rotary_emb = classes.rotary(layers)

    def project(self, hidden: Tensor) -> Tensor:
        """One hidden state [T, H] from the target's tapped ones, side by side in ``hidden`` [T, n * Ht]."""
        if self.input_norm is not None:
            hidden = self.input_norm(hidden)
        if self.fc_norm is not None:
            parts = hidden.chunk(len(self.fc_norm), dim=-1)
            hidden = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(hidden)

    def forward(self, token_ids: Tensor, hidden: Tensor, positions: Tensor, paged: PagedContext) -> Tensor:
        """Compute the packed rows; their keys and values go to the store.

        Parameters
        ----------
        token_ids, positions : Tensor [1, T], int64
            Token ids are the target's.
        hidden : Tensor [1, T, H]
            For the position before each row's: projected, or what the row before gave.
        paged : PagedContext

        Returns
        -------
        Tensor [1, T, H]
            What the next row takes as ``hidden``, and :meth:`head` as it is.
        """
        first, *others = self.layers
        options = {"position_embeddings": self.rotary_emb(hidden, positions), "paged": paged}
        hidden = first(self.embed(token_ids), hidden, **options, **window_kwargs(self.config.layer_config, 0))
        for i, layer in enumerate(others, start=1):
            hidden = layer(hidden, **options, **window_kwargs(self.config.layer_config, i))
        return self.norm(hidden) if self.config.norm_output else hidden

    def fill(self, token_ids: Tensor, hidden: Tensor, positions: Tensor, paged: PagedContext) -> None:
        """Only write the keys and values of the packed rows; parameters as for :meth:`forward`."""
        if len(self.layers) > 1:
            self(token_ids, hidden, positions, paged)
        else:
            options = {"position_embeddings": self.rotary_emb(hidden, positions), "paged": paged.without_queries}
            options |= window_kwargs(self.config.layer_config, 0)
            layer: Any = self.layers[0]
            layer.attend(self.embed(token_ids), hidden, **options)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., Vd] over the draft vocabulary, of what :meth:`forward` gave."""
        return self.unembed(hidden if self.config.norm_output else self.norm(hidden))
