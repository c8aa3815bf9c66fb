"""Drafters that go on from the target's hidden states, token by token: what EAGLE-3 and MTP share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from adaverify.drafters.base import DraftBlock, GoOn
from adaverify.drafters.hidden_state import HiddenStateDrafter
from adaverify.drafters.models import Eagle3DraftModel, MtpDraftModel
from adaverify.engine.batch import PackedBatch, Segment, pack, slots_of
from adaverify.engine.huge_pages import in_huge_pages
from adaverify.engine.request import Request
from adaverify.engine.runner import ForwardOutput
from adaverify.engine.scheduler import PrefillChunk

# Rows of one pass that only writes keys and values: what was left for later may be all that the blocks hold.
MAX_FILL_ROWS = 1024
# Steps without drafts after which prompts are left for later; one alone may be a pause.
IDLE_STEPS = 2


class ChainDrafter(HiddenStateDrafter[Eagle3DraftModel | MtpDraftModel]):
    """Drafts autoregressively, batched over requests, from hidden states that the target leaves in a paged store.

    Row j of a request carries token j and the hidden state of position j - 1, and predicts token j + 1; position 0
    has no row. Keys, values and hidden states lie in the target's blocks and depend on the tokens up to theirs alone,
    so that prefix caching, preemption and rollback come with them: what a rejected draft left is written again before
    it is read. Keys and values may come later than the states.

    Parameters
    ----------
    model, num_blocks, block_size, greedy
        As for :class:`~adaverify.drafters.hidden_state.HiddenStateDrafter`.
    max_padded_query : int
        Segments up to this length are padded together in attention.
    """

    knows_q_before_draw: ClassVar[bool] = False
    rereads: ClassVar[bool] = True

    def __init__(
        self,
        model: Eagle3DraftModel | MtpDraftModel,
        num_blocks: int,
        block_size: int,
        greedy: bool,
        max_padded_query: int,
    ) -> None:
        super().__init__(model, num_blocks, block_size, greedy)
        self.max_padded_query = max_padded_query
        self._idle_steps = 0
        shape = (num_blocks * block_size, model.config.tapped_size)
        self.states = in_huge_pages(torch.empty(shape, dtype=self.dtype, device=self.device)).zero_()

    @torch.inference_mode()
    def absorb(
        self,
        output: ForwardOutput,
        requests: Sequence[Request],
        num_drafts: Sequence[int],
        chunks: Sequence[PrefillChunk],
    ) -> None:
        """Keep the target's states, and, while drafting pays, take in the prompt chunks that they complete."""
        assert output.hidden is not None
        # As they are: what is never drafted from need not be projected.
        hidden = output.hidden.to(self.states.dtype).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        self.states.index_copy_(0, output.slots, hidden)
        segments = [self._unseen(chunk.request, chunk.end, 0) for chunk in chunks if self._idle_steps < IDLE_STEPS]
        self._fill([segment for segment in segments if segment.token_ids])

    @torch.inference_mode()
    def propose(
        self,
        requests: Sequence[Request],
        chunks: Sequence[PrefillChunk],
        depth: int,
        go_on: GoOn | None = None,
    ) -> DraftBlock:
        """Draft up to ``depth`` tokens each; see :meth:`Drafter.propose`. Chunks are for :meth:`absorb`, or later."""
        self._idle_steps = 0 if depth or not requests else self._idle_steps + 1
        if not depth or not requests:
            return DraftBlock.empty(len(requests), self.device)
        writer = self._writer(requests, depth, self.model.config.draft_vocab_size, self.model.target_token_ids)
        hidden = self._catch_up([self._unseen(request, request.num_tokens, 1) for request in requests])
        tokens = writer.draw(0, self.model.head(hidden))
        while writer.wants_more(go_on):
            hidden = self._run_drafted(requests, tokens, hidden, writer.drawn)
            tokens = writer.draw(writer.drawn, self.model.head(hidden))
        return writer.block()

    def _unseen(self, request: Request, end: int, num_logits: int) -> Segment:
        """The tokens up to ``end`` whose rows have not been computed from the target's states."""
        start = max(1, request.num_draft_computed)
        request.num_draft_computed = max(request.num_draft_computed, end)
        return Segment(request.token_ids[start:end], start, request.blocks, num_logits)

    def _catch_up(self, segments: Sequence[Segment]) -> Tensor:
        """Rows with the target's states; gives the last row of each segment [R, H].

        What came in while nothing was drafted may be long, and of all but the last row only keys and values matter.
        """
        long = [len(segment.token_ids) > self.max_padded_query for segment in segments]
        if any(long):
            heads = [segment for segment, is_long in zip(segments, long, strict=True) if is_long]
            self._fill([Segment(s.token_ids[:-1], s.start, s.blocks, 0) for s in heads])
            segments = [_last_of(s) if is_long else s for s, is_long in zip(segments, long, strict=True)]
        return self._run(segments, self._states_before(segments))

    def _fill(self, segments: Sequence[Segment]) -> None:
        """Write the keys and values of rows with the target's states."""
        for part in _parts(segments, MAX_FILL_ROWS):
            batch = self._pack(part)
            self.model.fill(batch.token_ids, self._states_before(part)[None], batch.positions, batch.context)

    def _states_before(self, segments: Sequence[Segment]) -> Tensor:
        """The target's states of the positions before all rows of ``segments``, projected [T, H]."""
        lengths = np.array([len(segment.token_ids) for segment in segments])
        starts = np.repeat([segment.start for segment in segments], lengths)
        firsts = np.repeat(np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        before = starts - 1 + np.arange(lengths.sum()) - firsts
        slots = torch.from_numpy(slots_of(segments, lengths, before, self.kv.block_size)).to(self.device)
        return self.model.project(self.states.index_select(0, slots))

    def _run_drafted(self, requests: Sequence[Request], tokens: Tensor, hidden: Tensor, num_drafts: int) -> Tensor:
        """Rows of the ``num_drafts``-th drafts, with our own states; one without room for it stays at its end."""
        segments = [
            Segment([token], min(request.num_tokens - 1 + num_drafts, request.max_len - 1), request.blocks, 1)
            for request, token in zip(requests, tokens.tolist(), strict=True)
        ]
        return self._run(segments, hidden)

    def _run(self, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
        batch = self._pack(segments)
        states = self.model(batch.token_ids, hidden[None], batch.positions, batch.context)
        return states[0, batch.logit_rows]

    def _pack(self, segments: Sequence[Segment]) -> PackedBatch:
        return pack(segments, self.kv, self.device, self.max_padded_query, first_key=1)


def _parts(segments: Sequence[Segment], max_rows: int) -> Iterator[list[Segment]]:
    """The tokens of ``segments`` in order, in parts of ``max_rows`` at most."""
    part: list[Segment] = []
    room = max_rows
    for segment in segments:
        begin = 0
        while begin < len(segment.token_ids):
            tokens = segment.token_ids[begin : begin + room]
            part.append(Segment(tokens, segment.start + begin, segment.blocks, 0))
            begin, room = begin + len(tokens), room - len(tokens)
            if not room:
                yield part
                part, room = [], max_rows
    if part:
        yield part


def _last_of(segment: Segment) -> Segment:
    """The last token of a segment alone."""
    before = len(segment.token_ids) - 1
    return Segment(segment.token_ids[-1:], segment.start + before, segment.blocks, segment.num_logits)
