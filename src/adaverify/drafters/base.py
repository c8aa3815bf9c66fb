"""What every drafting method offers the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from adaverify.engine.request import Request
from adaverify.engine.runner import ForwardOutput
from adaverify.engine.scheduler import PrefillChunk
from adaverify.policy.features import LawDetails
from adaverify.sampling.laws import DraftLaws


@dataclass(frozen=True)
class DraftBlock:
    """The drafts of one round: R requests, up to K positions each.

    Attributes
    ----------
    token_ids : Tensor [R, K], int64
    features : Tensor [R, K], float32
        Log-odds of the most likely draft token; nan where the draft distribution was not finite.
    laws : DraftLaws, optional
        What the drafts were drawn from; row r * K + i for draft i of request r. None: one-hot, or not kept, as
        coupled verification does not need them.
    confidence : Tensor [R, K], float32, optional
        Log-odds of acceptance from the drafter's own confidence head.
    margin : Tensor [R, K], float32, optional
        How far each drawn draft is ahead of the second best in the race of its position, in nats; see
        :class:`~adaverify.sampling.coupled.CoupledDrafts`. It tells of the draw: with coupled verification only.
    details : LawDetails of Tensor [R, K], optional
        For the lab, where the drafter was told to keep them.
    laws_per_request : int, optional
        Rows of ``laws`` for each request where they are more than the block is deep, because it ended early.
    """

    token_ids: Tensor
    features: Tensor
    laws: DraftLaws | None
    confidence: Tensor | None = None
    details: LawDetails | None = None
    margin: Tensor | None = None
    laws_per_request: int | None = None

    @classmethod
    def empty(cls, num_requests: int, device: torch.device) -> DraftBlock:
        """Nothing drafted."""
        return cls(
            torch.empty(num_requests, 0, dtype=torch.long, device=device),
            torch.empty(num_requests, 0, device=device),
            laws=None,
        )

    @property
    def depth(self) -> int:
        """Positions drafted, K."""
        return self.token_ids.shape[1]

    def law_start(self, row: int) -> int | None:
        """Row of ``laws`` for the first draft of request ``row``."""
        return None if self.laws is None else row * (self.laws_per_request or self.depth)


class GoOn(Protocol):
    """Asked after each position whether the batch shall draft another."""

    def __call__(self, position: int, features: Tensor, margins: Tensor | None) -> bool:
        """Say whether to go on.

        Parameters
        ----------
        position : int
            Just drawn, from 0.
        features, margins : Tensor [R]
            As of :class:`DraftBlock`, at that position.
        """


class Drafter(ABC):
    """Proposes draft tokens for a batch of requests.

    Attributes
    ----------
    knows_q_before_draw : bool
        Whether all draft distributions of a block are known before any of its tokens is drawn. Only then may
        the draft budget look at the confidences of the present block.
    drafts_in_parallel : bool
        Whether a block is drafted in one pass, so that its depth must be chosen before it.
    rereads : bool
        Whether it can read a text at any time from what :meth:`absorb` has kept: then cached blocks need not hold what
        it makes of it, and prompts that come while nothing is drafted are left for later.
    has_confidence_head : bool
        Whether its blocks bring a confidence of their own.
    keeps_details : bool
        Whether its blocks bring :class:`~adaverify.policy.features.LawDetails`; off unless a trace is recorded.
    coupled : bool
        Whether drafts are drawn with the noise that the target's tokens will be drawn with.
    """

    knows_q_before_draw: ClassVar[bool]
    drafts_in_parallel: ClassVar[bool] = False
    rereads: ClassVar[bool] = False
    has_confidence_head: bool = False
    keeps_details: bool = False
    coupled: bool = False

    @abstractmethod
    def propose(
        self,
        requests: Sequence[Request],
        chunks: Sequence[PrefillChunk],
        depth: int,
        go_on: GoOn | None = None,
    ) -> DraftBlock:
        """Draft ``depth`` tokens for each of ``requests`` and take in the prompt ``chunks`` of the same step.

        Parameters
        ----------
        requests : sequence of Request
            Decoding requests; their blocks cover ``depth`` more tokens, or as many as they may still use.
        chunks : sequence of PrefillChunk
            Prompt tokens that the target computes in this step.
        depth : int
            0 takes in the chunks at most.
        go_on : callable, optional
            Ends the block before that. A parallel drafter does not ask.
        """

    @abstractmethod
    def absorb(
        self,
        output: ForwardOutput,
        requests: Sequence[Request],
        num_drafts: Sequence[int],
        chunks: Sequence[PrefillChunk],
    ) -> None:
        """Read the target's pass of this step, before anything is known of acceptance.

        Parameters
        ----------
        output : ForwardOutput
            Rows of the decodes (last token and admitted drafts), then of the chunks.
        requests, num_drafts : sequence of Request, sequence of int
            The decodes and the drafts admitted for each.
        chunks : sequence of PrefillChunk
        """
