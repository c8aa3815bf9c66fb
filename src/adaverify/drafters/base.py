"""What every drafting method offers the engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from adaverify.engine.request import Request
from adaverify.engine.scheduler import PrefillChunk


@dataclass(frozen=True)
class DraftBlock:
    """The drafts of one round: R requests, up to K positions each.

    Attributes
    ----------
    token_ids : Tensor [R, K], int64
    features : Tensor [R, K], float32
        Log-odds of the most likely draft token; nan where the draft distribution was not finite.
    q : Tensor [R * K, V], float32, optional
        The laws that the drafts were drawn from; row r * K + i for draft i of request r. None: one-hot.
    """

    token_ids: Tensor
    features: Tensor
    q: Tensor | None

    @property
    def depth(self) -> int:
        """Positions drafted, K."""
        return self.token_ids.shape[1]

    def q_start(self, row: int) -> int | None:
        """Row of ``q`` for the first draft of request ``row``."""
        return None if self.q is None else row * self.depth


class Drafter(ABC):
    """Proposes draft tokens for a batch of requests.

    Attributes
    ----------
    knows_q_before_draw : bool
        Whether all draft distributions of a block are known before any of its tokens is drawn. Only then may
        the draft budget look at the confidences of the present block.
    """

    knows_q_before_draw: ClassVar[bool]

    @abstractmethod
    def propose(self, requests: Sequence[Request], chunks: Sequence[PrefillChunk], depth: int) -> DraftBlock:
        """Draft ``depth`` tokens for each of ``requests`` and take in the prompt ``chunks`` of the same step.

        Parameters
        ----------
        requests : sequence of Request
            Decoding requests; their blocks cover ``depth`` more tokens, or as many as they may still use.
        chunks : sequence of PrefillChunk
            Prompt tokens that the target computes in this step.
        depth : int
            0 only takes in the chunks.
        """
