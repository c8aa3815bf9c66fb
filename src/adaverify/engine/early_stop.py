"""What ends a block of drafts early: its own confidences, once they are known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from adaverify.policy.depth import worth_another_pass


class EarlyStop:
    """Whether the batch shall draft on, asked after every position: the ``go_on`` of one step.

    Parameters
    ----------
    confidence_at : callable
    num_drafts : Tensor [R], int64
        Drafts that each request can use.
    expected : Tensor [K]
        Mean confidence by position.
    rate : Tensor, 0-dim
    draft_ms, verify_ms : Tensor [K]
        Milliseconds that each position adds to drafting, and to verification if it is verified for all.
    trims_later : bool
    """

    def __init__(
        self,
        confidence_at: Callable[[Tensor, Tensor | None, int], Tensor],
        num_drafts: Tensor,
        expected: Tensor,
        rate: Tensor,
        draft_ms: Tensor,
        verify_ms: Tensor,
        trims_later: bool,
    ) -> None:
        self._confidence_at = confidence_at
        self._num_drafts = num_drafts
        self._expected = expected
        self._rate = rate
        self._draft_ms = draft_ms
        self._verify_ms = verify_ms
        self._trims_later = trims_later
        self._survival = torch.ones(len(num_drafts), dtype=torch.float64, device=num_drafts.device)

    def __call__(self, position: int, features: Tensor, margins: Tensor | None) -> bool:
        """See :class:`~adaverify.drafters.base.GoOn`."""
        confidences = self._confidence_at(features, margins, position)
        usable = confidences.isfinite() & (position + 1 < self._num_drafts)
        self._survival = torch.where(usable, self._survival * confidences, 0.0)
        following = position + 1
        return bool(
            worth_another_pass(
                self._survival,
                self._expected[following],
                self._rate,
                self._draft_ms[following],
                self._verify_ms[following],
                self._trims_later,
            )
        )
