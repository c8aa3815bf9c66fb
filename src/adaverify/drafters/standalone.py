"""A standalone smaller language model as drafter (``method: draft_model``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from adaverify.drafters.base import DraftBlock, Drafter, GoOn
from adaverify.drafters.vocabulary import align_logits
from adaverify.drafters.writer import DraftWriter, LawBuffer
from adaverify.engine.batch import Segment
from adaverify.engine.request import Request
from adaverify.engine.runner import ForwardOutput, ModelRunner
from adaverify.engine.scheduler import PrefillChunk


class StandaloneDrafter(Drafter):
    """Drafts autoregressively with a model of its own, batched over requests.

    The drafter's KV store uses the blocks of the target's, so that prefix caching, preemption and rollback
    need no second bookkeeping: a rejected draft's slot is simply written again.

    Parameters
    ----------
    runner : ModelRunner
        The draft model.
    vocab_size : int
        Width of the target's logits.
    greedy : bool
        Take the most likely token (q is one-hot) instead of drawing from q.
    """

    knows_q_before_draw: ClassVar[bool] = False

    def __init__(self, runner: ModelRunner, vocab_size: int, greedy: bool) -> None:
        self.runner = runner
        self.vocab_size = vocab_size
        self.greedy = greedy
        self._laws = LawBuffer(runner.device)

    @torch.inference_mode()
    def propose(
        self,
        requests: Sequence[Request],
        chunks: Sequence[PrefillChunk],
        depth: int,
        go_on: GoOn | None = None,
    ) -> DraftBlock:
        """Draft up to ``depth`` tokens per request; see :meth:`Drafter.propose`."""
        if not depth or not requests:
            self._take_in([], chunks)
            return DraftBlock.empty(len(requests), self.runner.device)
        writer = DraftWriter(
            requests,
            depth,
            self.vocab_size,
            self.greedy,
            self._laws,
            self.runner.device,
            keep_details=self.keeps_details,
            coupled=self.coupled,
        )
        logits = self._take_in(requests, chunks)
        tokens = writer.draw(0, align_logits(logits, self.vocab_size))
        while writer.wants_more(go_on):
            logits = self._extend(requests, tokens, writer.drawn)
            tokens = writer.draw(writer.drawn, align_logits(logits, self.vocab_size))
        for request in requests:
            # the last draft of the block has been drawn but not read
            request.num_draft_computed = request.num_tokens + writer.drawn - 1
        return writer.block()

    def absorb(
        self,
        output: ForwardOutput,
        requests: Sequence[Request],
        num_drafts: Sequence[int],
        chunks: Sequence[PrefillChunk],
    ) -> None:
        """Nothing: the model reads tokens only."""

    def _take_in(self, requests: Sequence[Request], chunks: Sequence[PrefillChunk]) -> Tensor:
        """Compute the tokens that the drafter has not seen; returns the logits after each request's last token."""
        segments = [self._unseen(request, request.num_tokens, 1) for request in requests]
        segments += [self._unseen(chunk.request, chunk.end, 0) for chunk in chunks]
        segments = [segment for segment in segments if segment.token_ids]
        return self.runner.forward(segments).logits if segments else torch.empty(0)

    def _unseen(self, request: Request, end: int, num_logits: int) -> Segment:
        start = request.num_draft_computed
        request.num_draft_computed = max(start, end)
        return Segment(self._known(request.token_ids[start:end]), start, request.blocks, num_logits)

    def _known(self, token_ids: list[int]) -> list[int]:
        """The same tokens, with ids beyond the drafter's embedding, which only padding can have, as 0."""
        width = self.runner.vocab_size
        return token_ids if width >= self.vocab_size else [token if token < width else 0 for token in token_ids]

    def _extend(self, requests: Sequence[Request], last: Tensor, num_drafts: int) -> Tensor:
        """Logits after the ``num_drafts``-th draft of each request; one without room for it stays at its end."""
        segments = [
            Segment([token], min(request.num_tokens - 1 + num_drafts, request.max_len - 1), request.blocks, 1)
            for request, token in zip(requests, last.tolist(), strict=True)
        ]
        return self.runner.forward(segments).logits
