"""DFlash (``method: dflash``, arXiv 2602.06036), and what the drafters built on it share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from adaverify.drafters.base import DraftBlock, GoOn
from adaverify.drafters.hidden_state import HiddenStateDrafter
from adaverify.drafters.models import DFlashDraftModel
from adaverify.drafters.writer import DraftWriter
from adaverify.engine.batch import Segment, pack
from adaverify.engine.request import Request
from adaverify.engine.runner import ForwardOutput
from adaverify.engine.scheduler import PrefillChunk


class DFlashDrafter(HiddenStateDrafter[DFlashDraftModel]):
    """Drafts a whole block in one pass over keys and values made of the target's hidden states.

    Those are written for every row that the target computes, rejected drafts included: a later pass writes these
    again before anything reads them. A block's own keys and values lie at the positions that it drafts.
    """

    knows_q_before_draw: ClassVar[bool] = True
    drafts_in_parallel: ClassVar[bool] = True

    @torch.inference_mode()
    def absorb(
        self,
        output: ForwardOutput,
        requests: Sequence[Request],
        num_drafts: Sequence[int],
        chunks: Sequence[PrefillChunk],
    ) -> None:
        """Write the keys and values that stand for the rows the target has just computed."""
        assert output.hidden is not None
        projected = self.model.project(output.hidden.to(self.dtype))
        for index, (key, value) in enumerate(self.model.context(projected, output.positions)):
            self.kv.layer(index).write(output.slots, key, value)
        for request, count in zip(requests, num_drafts, strict=True):
            request.num_draft_computed = request.num_tokens + count
        for chunk in chunks:
            chunk.request.num_draft_computed = chunk.end

    @torch.inference_mode()
    def propose(
        self,
        requests: Sequence[Request],
        chunks: Sequence[PrefillChunk],
        depth: int,
        go_on: GoOn | None = None,
    ) -> DraftBlock:
        """Draft ``depth`` tokens per request; see :meth:`Drafter.propose`. Chunks are taken in by :meth:`absorb`."""
        if not depth or not requests:
            return DraftBlock.empty(len(requests), self.device)
        writer = self.new_writer(requests, depth)
        hidden = self._run_blocks(requests, depth)
        self.draw(writer, hidden, self.model.head(hidden), requests)
        return writer.block()

    def new_writer(self, requests: Sequence[Request], depth: int) -> DraftWriter:
        """Where the drafts of a round go."""
        width, columns = self.model.config.draft_vocab_size, self.model.target_token_ids
        return self._writer(requests, depth, width, columns)

    def draw(self, writer: DraftWriter, hidden: Tensor, logits: Tensor, requests: Sequence[Request]) -> None:
        """Draw the drafts of a round.

        Parameters
        ----------
        writer : DraftWriter
        hidden : Tensor [R, K, H]
            Normed states of the rows that draft.
        logits : Tensor [R, K, Vd]
        requests : sequence of Request
        """
        writer.draw_all(logits)

    def _run_blocks(self, requests: Sequence[Request], depth: int) -> Tensor:
        """Normed states [R, K, H] of the rows that draft, one block a request."""
        config = self.model.config
        rows = depth if config.sample_from_anchor else depth + 1
        masks = [config.mask_token_id] * (rows - 1)
        segments = [
            Segment([request.token_ids[-1], *masks], request.num_tokens - 1, request.blocks, depth)
            for request in requests
        ]
        batch = pack(segments, self.kv, self.device, max_padded_query=rows, whole_segments=True)
        hidden = self.model(batch.token_ids, batch.positions, batch.context, rows_per_block=rows)
        return hidden[0, batch.logit_rows].view(len(requests), depth, -1)
