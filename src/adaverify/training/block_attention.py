"""Attention of anchored blocks that computes what its mask leaves, and no more.

A training batch of a parallel drafter has many blocks behind one packed context. A block sees its own rows and the
context before its anchor. A dense mask makes every row look at every block's rows and throws nearly all of it away,
which on a CPU is most of attention's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

NAME = "adaverify_anchored_blocks"


@dataclass(frozen=True)
class BlockContext:
    """What the blocks see of the context; stands in for an attention mask.

    Attributes
    ----------
    visible : Tensor [B, T], bool
        Context tokens that block b sees.
    """

    visible: Tensor

    @classmethod
    def before_anchors(cls, document_ids: Tensor, anchors: Tensor) -> BlockContext:
        """The tokens of its own document before its anchor, for each block.

        Parameters
        ----------
        document_ids : Tensor [1, T], int64
            -1 for padding.
        anchors : Tensor [B], int64
        """
        documents = document_ids.squeeze(0)
        own = documents[anchors].unsqueeze(-1)
        before = torch.arange(len(documents), device=documents.device) < anchors.unsqueeze(-1)
        return cls((documents == own) & (own != -1) & before)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockContext,
    scaling: float,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attention of B blocks of n rows behind T context tokens, in the form that transformers calls.

    Parameters
    ----------
    query : Tensor [1, H, B * n, D]
    key, value : Tensor [1, H_kv, T + B * n, D]
    attention_mask : BlockContext

    Returns
    -------
    Tensor [1, B * n, H, D]
    """
    num_blocks, length = attention_mask.visible.shape
    num_heads, num_rows, width = query.shape[1:]
    num_kv_heads, rows = key.shape[1], num_rows // num_blocks
    grouped = query[0].reshape(num_kv_heads, -1, num_blocks, rows, width)
    key_context, key_own = key[0, :, :length], key[0, :, length:].view(num_kv_heads, 1, num_blocks, rows, width)
    value_context, value_own = value[0, :, :length], value[0, :, length:].view(num_kv_heads, 1, num_blocks, rows, width)

    flat = grouped.reshape(num_kv_heads, -1, width)
    of_context = (flat @ key_context.transpose(-1, -2)).view(*grouped.shape[:-1], length)
    of_context = of_context.masked_fill(~attention_mask.visible[:, None], -torch.inf)
    of_own = grouped @ key_own.transpose(-1, -2)
    weights = (torch.cat((of_context, of_own), dim=-1) * scaling).softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    mixed = (weights[..., :length].reshape(num_kv_heads, -1, length) @ value_context).view_as(grouped)
    mixed = mixed + weights[..., length:] @ value_own
    return mixed.reshape(num_heads, num_rows, width).transpose(0, 1).unsqueeze(0), None


def use_block_attention(model: Any) -> None:
    """Let a DFlash model of speculators, or one of its kin, attend this way."""
    AttentionInterface.register(NAME, attend)
    model.config.transformer_layer_config._attn_implementation = NAME
    for layer in model.layers:
        layer.self_attn.config._attn_implementation = NAME

    def mask(document_ids: Tensor, total_seq_len: int, anchor_positions: Tensor, **unused: Any) -> BlockContext:
        return BlockContext.before_anchors(document_ids, anchor_positions)

    model._create_attention_mask = mask
