"""A standalone smaller language model as drafter (``method: draft_model``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from adaverify.drafters.base import DraftBlock, Drafter
from adaverify.drafters.vocabulary import align_logits
from adaverify.engine.batch import Segment
from adaverify.engine.request import Request
from adaverify.engine.runner import ModelRunner
from adaverify.engine.scheduler import PrefillChunk
from adaverify.policy.features import log_odds_of_max
from adaverify.sampling.processors import SamplingTensors, draw_drafts
from adaverify.sampling.rng import Purpose, uniforms


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
        self._q_buffer = torch.empty(0)

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request], chunks: Sequence[PrefillChunk], depth: int) -> DraftBlock:
        """Draft ``depth`` tokens per request; see :meth:`Drafter.propose`."""
        device = self.runner.device
        sampling = SamplingTensors.from_params([r.params for r in requests], [r.seed for r in requests], device)
        one_hot = self.greedy or all(r.params.is_greedy for r in requests)
        q = None if one_hot else self._q_rows(len(requests) * depth).view(len(requests), depth, self.vocab_size)
        noise = self._noise(requests, depth, sampling.seeds)
        tokens = torch.empty(len(requests), depth, dtype=torch.long, device=device)
        features = torch.empty(len(requests), depth, device=device)
        logits = self._take_in(requests if depth else [], chunks)
        for i in range(depth):
            if i > 0:
                logits = self._extend(requests, tokens[:, i - 1], i)
            logits = align_logits(logits, self.vocab_size).float()
            features[:, i] = log_odds_of_max(logits, sampling.temperature)
            if q is None:
                tokens[:, i] = logits.max(dim=-1).indices
            else:
                tokens[:, i], q[:, i] = draw_drafts(logits, sampling, noise[:, i])
        for request in requests if depth else []:
            # the last draft of the block has been drawn but not read
            request.num_draft_computed = request.num_tokens + depth - 1
        return DraftBlock(tokens, features, None if q is None else q.flatten(0, 1))

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

    def _noise(self, requests: Sequence[Request], depth: int, seeds: Tensor) -> Tensor:
        """Uniforms [R, K], keyed by position and by depth in the block: see ``sampling.rng``."""
        first = torch.tensor([r.num_tokens for r in requests], dtype=torch.long, device=seeds.device)
        depths = torch.arange(depth, device=seeds.device).expand(len(requests), -1)
        return uniforms(seeds, Purpose.DRAFT, first[:, None] + depths, depths)

    def _q_rows(self, num_rows: int) -> Tensor:
        """Storage for ``num_rows`` laws; kept, since fresh pages cost more than the drafts' arithmetic."""
        if self._q_buffer.numel() < num_rows * self.vocab_size:
            self._q_buffer = torch.empty(num_rows * self.vocab_size, device=self.runner.device)
        return self._q_buffer[: num_rows * self.vocab_size].view(num_rows, self.vocab_size)
