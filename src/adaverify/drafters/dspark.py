"""DSpark (``method: dspark``, arXiv 2607.05147): parallel logits, a Markov bias, and a confidence head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from adaverify.drafters.dflash import DFlashDrafter
from adaverify.drafters.models import DSparkDraftModel
from adaverify.drafters.writer import DraftWriter
from adaverify.engine.request import Request


class DSparkDrafter(DFlashDrafter):
    """DFlash with a bias from the token before, and with a head that predicts acceptance.

    A distribution depends on the token drawn before it, so that the budget may not look at this block. The head reads
    that token too, which is known before the draft that it judges is drawn.

    Parameters
    ----------
    scale_confidence : bool
        Divide the head's log-odds by the checkpoint's temperatures (sequential temperature scaling).
    """

    knows_q_before_draw: ClassVar[bool] = False
    model: DSparkDraftModel

    def __init__(
        self, model: DSparkDraftModel, num_blocks: int, block_size: int, greedy: bool, scale_confidence: bool = False
    ) -> None:
        super().__init__(model, num_blocks, block_size, greedy)
        self.has_confidence_head = model.config.enable_confidence_head
        temperatures = model.config.confidence_temperatures if scale_confidence else None
        self.temperatures = torch.tensor(temperatures, device=self.device) if temperatures else None

    def draw(self, writer: DraftWriter, hidden: Tensor, logits: Tensor, requests: Sequence[Request]) -> None:
        """See :meth:`DFlashDrafter.draw`."""
        previous = torch.tensor([request.token_ids[-1] for request in requests], device=self.device)
        state: Tensor | None = None
        confidences: list[Tensor] = []
        for i in range(writer.depth):
            if self.has_confidence_head:
                confidence = self.model.confidence(hidden[:, i], previous)
                assert confidence is not None
                confidences.append(confidence)
            bias, state = self.model.markov_bias(previous, hidden[:, i], state)
            previous = writer.draw(i, logits[:, i] if bias is None else logits[:, i] + bias)
        if confidences:
            said = torch.stack(confidences, dim=1)
            writer.confidence = said if self.temperatures is None else said / self.temperatures[: writer.depth]
