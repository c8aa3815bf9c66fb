"""DFlash2 (z-lab/dflash): DFlash with convolutions inside blocks and a selector among the likeliest tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from adaverify.drafters.models.config import DraftModelConfig
from adaverify.drafters.models.dflash import DFlashDraftModel


class BlockConv(nn.Module):
    """Two causal convolutions over the rows of a block, before and after another module.

    Channel c of a row is a weighted sum of itself and the ``kernel_size`` - 1 rows before it in the block. A weight is
    a learnt constant of the channel plus a term that the row projects for each group of ``group_size`` channels.
    """

    def __init__(self, width: int, kernel_size: int, group_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.num_groups = width // group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, kernel_size, width))
        self.kernel_projection = nn.Linear(width, 2 * kernel_size * self.num_groups, bias=False)
        # neither convolution changes anything until it is trained
        nn.init.ones_(self.base_kernel[:, 0])
        nn.init.zeros_(self.kernel_projection.weight)

    def row_kernels(self, hidden: Tensor) -> Tensor:
        """What each row of ``hidden`` [R, B, H] adds to both kernels: [2, R, B, kernel_size, num_groups]."""
        return self.kernel_projection(hidden).unflatten(-1, (2, self.kernel_size, self.num_groups)).movedim(-3, 0)

    def forward(self, hidden: Tensor, row_kernel: Tensor, side: int) -> Tensor:
        """Convolve ``hidden`` [R, B, H] with ``row_kernel`` [R, B, kernel_size, num_groups]; side 0 before, 1 after."""
        rows = hidden.shape[1]
        grouped = hidden.unflatten(-1, (self.num_groups, -1))
        earlier = F.pad(grouped, (0, 0, 0, 0, self.kernel_size - 1, 0))
        constant = self.base_kernel[side].unflatten(-1, (self.num_groups, -1))
        output = torch.zeros_like(grouped)
        for lag in range(self.kernel_size):
            first = self.kernel_size - 1 - lag
            output = output + earlier[:, first : first + rows] * (constant[lag] + row_kernel[:, :, lag, :, None])
        return output.flatten(-2)


class DFlash2Layer(Qwen3DecoderLayer):
    """A Qwen3 layer with convolutions around attention and around the MLP."""

    def __init__(self, config: Any, index: int, kernel_size: int, group_size: int) -> None:
        super().__init__(config, index)
        self.attention_conv = BlockConv(config.hidden_size, kernel_size, group_size)
        self.mlp_conv = BlockConv(config.hidden_size, kernel_size, group_size)

    def forward(self, hidden_states: Tensor, rows_per_block: int, **attention: Any) -> Tensor:  # type: ignore[override]
        """Hidden states [1, T, H] of whole blocks."""
        blocks = hidden_states.view(-1, rows_per_block, hidden_states.shape[-1])
        normed = self.input_layernorm(blocks)
        before, after = self.attention_conv.row_kernels(normed)
        normed = self.attention_conv(normed, before, 0).view(hidden_states.shape)
        attended = self.self_attn(normed, **attention)[0].view(blocks.shape)
        blocks = blocks + self.attention_conv(attended, after, 1)
        normed = self.post_attention_layernorm(blocks)
        before, after = self.mlp_conv.row_kernels(normed)
        blocks = blocks + self.mlp_conv(self.mlp(self.mlp_conv(normed, before, 0)), after, 1)
        return blocks.view(hidden_states.shape)


class CandidateSelector(nn.Module):
    """A low-rank score of each candidate after each predecessor, weighted by the hidden state."""

    def __init__(self, config: DraftModelConfig) -> None:
        super().__init__()
        rank, scale = config.selector_rank, config.layer_config.initializer_range
        self.predecessor_codebook = nn.Parameter(torch.randn(config.vocab_size, rank) * scale)
        self.successor_codebook = nn.Parameter(torch.randn(config.vocab_size, rank) * scale)
        self.hidden_projection = nn.Linear(config.hidden_size, rank, bias=False)

    def forward(self, hidden: Tensor, previous: Tensor, candidates: Tensor) -> Tensor:
        """Scores [R, k] of ``candidates`` [R, k] after ``previous`` [R], given ``hidden`` [R, H]."""
        context = self.predecessor_codebook[previous] * self.hidden_projection(hidden)
        return torch.einsum("rd,rkd->rk", context, self.successor_codebook[candidates])


class DFlash2DraftModel(DFlashDraftModel):
    """DFlash2: :meth:`forward` needs ``rows_per_block``, and drafts are chosen one by one with :meth:`select`."""

    def __init__(self, config: DraftModelConfig, target_token_ids: Tensor | None = None) -> None:
        super().__init__(config, target_token_ids)
        self.candidate_selector = CandidateSelector(config)

    def _make_layer(self, layers: Any, index: int) -> nn.Module:
        return DFlash2Layer(layers, index, self.config.conv_kernel_size, self.config.conv_group_size)

    def _layer_options(self, rows_per_block: int | None) -> dict[str, Any]:
        assert rows_per_block is not None, "DFlash2 needs to know where blocks end"
        return {"rows_per_block": rows_per_block}

    def select(self, logits: Tensor, hidden: Tensor, previous_token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Score the likeliest tokens of one position anew, given the token before it.

        Parameters
        ----------
        logits : Tensor [R, V]
            Of :meth:`head`.
        hidden : Tensor [R, H]
            The rows they are of.
        previous_token_ids : Tensor [R], int64

        Returns
        -------
        candidate_ids : Tensor [R, k], int64
            The ``selector_top_k`` likeliest by ``logits``.
        scores : Tensor [R, k]
            Their logits in place of ``logits``; all other tokens have probability 0.
        """
        unary, candidates = logits.topk(self.config.selector_top_k, dim=-1)
        return candidates, unary + self.candidate_selector(hidden, previous_token_ids, candidates).to(unary.dtype)
