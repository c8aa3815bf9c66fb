"""DFlash2 (``method: dflash2``): candidates in parallel, then a walk over them from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from adaverify.drafters.dflash import DFlashDrafter
from adaverify.drafters.models import DFlash2DraftModel
from adaverify.drafters.writer import DraftWriter
from adaverify.engine.request import Request


class DFlash2Drafter(DFlashDrafter):
    """DFlash whose drafts are drawn among each position's likeliest tokens, rescored by the token before.

    A distribution depends on the token drawn before it, so that the budget may not look at this block.
    """

    knows_q_before_draw: ClassVar[bool] = False
    model: DFlash2DraftModel

    def new_writer(self, requests: Sequence[Request], depth: int) -> DraftWriter:
        """See :meth:`DFlashDrafter.new_writer`; each draft has its own candidates."""
        width = self.model.config.selector_top_k
        return self._writer(requests, depth, width, own_columns=True)

    def draw(self, writer: DraftWriter, hidden: Tensor, logits: Tensor, requests: Sequence[Request]) -> None:
        """See :meth:`DFlashDrafter.draw`."""
        previous = torch.tensor([request.token_ids[-1] for request in requests], device=self.device)
        for i in range(writer.depth):
            candidates, scores = self.model.select(logits[:, i], hidden[:, i], previous)
            previous = writer.draw(i, scores, candidates)
