"""DFlash (arXiv 2602.06036): a block of drafts in one pass, over keys and values made of the target's hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from adaverify.drafters.models.base import DraftModel
from adaverify.drafters.models.block_mask import block_context, layer_causal
from adaverify.drafters.models.config import DraftModelConfig
from adaverify.drafters.models.layers import paged_config
from adaverify.engine.attention import PagedContext


class DFlashDraftModel(DraftModel):
    """DFlash: the rows of a block are the last known token, the anchor, and mask tokens; all see one another.

    Row k, at position anchor + k, drafts the token of that position, or of the next one if the configuration says
    ``sample_from_anchor``.
    """

    def __init__(self, config: DraftModelConfig, target_token_ids: Tensor | None = None) -> None:
        super().__init__(config, target_token_ids)
        layers: Any = paged_config(config.layer_config)
        width, eps = config.hidden_size, layers.rms_norm_eps
        self.fc = nn.Linear(len(config.tap_layer_ids) * config.target_hidden_size, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList([self._make_layer(layers, i) for i in range(config.num_layers)])
        self.norm = Qwen3RMSNorm(width, eps=eps)
        self.rotary_emb = Qwen3RotaryEmbedding(layers)

    def _make_layer(self, layers: Any, index: int) -> nn.Module:
        return Qwen3DecoderLayer(layers, index)

    def _layer_options(self, rows_per_block: int | None) -> dict[str, Any]:
        """Further arguments of each layer."""
        return {}

    def project(self, hidden: Tensor) -> Tensor:
        """One normed hidden state [T, H] from the target's tapped ones, side by side in ``hidden`` [T, n * Ht]."""
        return self.hidden_norm(self.fc(hidden))

    def context(self, projected: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values that stand for the target's tokens.

        Parameters
        ----------
        projected : Tensor [T, H]
            What :meth:`project` gave.
        positions : Tensor [1, T], int64

        Returns
        -------
        list of (Tensor [Hkv, T, D], Tensor [Hkv, T, D])
            Of each layer, rotated, to be written to the store.
        """
        cos, sin = (table[0] for table in self.rotary_emb(projected, positions))
        pairs = []
        for layer in self.layers:
            attention: Any = layer.self_attn
            heads = (self.config.layer_config.num_key_value_heads, attention.head_dim)
            key = attention.k_norm(attention.k_proj(projected).unflatten(-1, heads)).transpose(0, 1)
            value = attention.v_proj(projected).unflatten(-1, heads).transpose(0, 1)
            pairs.append((key * cos + rotate_half(key) * sin, value))
        return pairs

    def forward(
        self, token_ids: Tensor, positions: Tensor, paged: PagedContext, rows_per_block: int | None = None
    ) -> Tensor:
        """Compute the rows of blocks; their keys and values go to the store.

        Parameters
        ----------
        token_ids, positions : Tensor [1, T], int64
            Block after block, each of them the anchor and then mask tokens; a block's positions follow one another.
        paged : PagedContext
            One group row a block, with the position of the block's last row for all its queries, so that rows see
            the whole block. Layers that are causal or have a sliding window go by ``positions`` instead.
        rows_per_block : int, optional
            Needed by DFlash2 only.

        Returns
        -------
        Tensor [1, T, H]
            Normed, for :meth:`head`.
        """
        hidden = self.embed(token_ids)
        if self.config.embedding_scale != 1:
            hidden = hidden * self.config.embedding_scale
        position_embeddings = self.rotary_emb(hidden, positions)
        contexts: dict[bool | None, PagedContext] = {None: paged}
        for i, layer in enumerate(self.layers):
            causal = layer_causal(self.config, i)
            if causal not in contexts:
                contexts[causal] = block_context(paged, positions, self.config, bool(causal))
            options = self._layer_options(rows_per_block)
            hidden = layer(
                hidden,
                attention_mask=None,
                position_embeddings=position_embeddings,
                paged=contexts[causal],
                **options,
            )
        totals = [context.total for context in contexts.values() if context.total is not None]
        paged.total = torch.stack(totals).sum(dim=0)
        return self.norm(hidden)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [..., Vd] over the draft vocabulary, of what :meth:`forward` gave."""
        logits = self.unembed(hidden)
        if self.config.logit_scale != 1:
            logits = logits * self.config.logit_scale
        bound = self.config.logit_softcap
        return torch.tanh(logits / bound) * bound if bound > 0 else logits
