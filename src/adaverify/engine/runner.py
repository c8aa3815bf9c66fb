"""Runs one language model over packed batches with its own paged KV store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from adaverify.engine.batch import Segment, pack
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.taps import HiddenTaps


@dataclass(frozen=True)
class ForwardOutput:
    """What one pass gives.

    Attributes
    ----------
    logits : Tensor [N, V]
        In the model's dtype, of the rows that the segments asked for, in order.
    finite : Tensor [T], bool
        Whether each packed row's keys and values were finite in every layer.
    slots : Tensor [T], int64
        Slot of each packed row in the KV blocks.
    positions : Tensor [1, T], int64
    hidden : Tensor [T, n * H], optional
        Hidden states of each packed row at the taps, side by side.
    """

    logits: Tensor
    finite: Tensor
    slots: Tensor
    positions: Tensor
    hidden: Tensor | None = None


class ModelRunner:
    """A model and its KV store.

    Parameters
    ----------
    model : PreTrainedModel
        A causal language model whose attention hook has been checked.
    kv : PagedKV
    max_padded_query : int
        Segments up to this length are padded together in attention.
    taps : HiddenTaps, optional
        Hidden states to hand out with the logits.
    """

    def __init__(
        self, model: PreTrainedModel, kv: PagedKV, max_padded_query: int, taps: HiddenTaps | None = None
    ) -> None:
        self.model = model
        self.kv = kv
        self.device = model.device
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.max_padded_query = max_padded_query
        self.taps = taps

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> ForwardOutput:
        """Run ``segments`` through the model in one packed row."""
        batch = pack(segments, self.kv, self.device, self.max_padded_query)
        output = self.model(
            input_ids=batch.token_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            paged=batch.context,
        )
        assert batch.context.total is not None, "the model called no attention layer"
        return ForwardOutput(
            logits=output.logits[0],
            finite=batch.context.total.isfinite(),
            slots=batch.context.slots,
            positions=batch.positions,
            hidden=self.taps.take() if self.taps else None,
        )
