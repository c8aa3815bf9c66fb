"""What the drafters with a trained model share: the model, its store in the target's blocks, room for laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from torch import Tensor

from adaverify.drafters.base import Drafter
from adaverify.drafters.models import DraftModel
from adaverify.drafters.writer import DraftWriter, LawBuffer
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.request import Request

Model = TypeVar("Model", bound=DraftModel)


class HiddenStateDrafter(Drafter, Generic[Model]):
    """Drafts with a model that reads the target's hidden states.

    Parameters
    ----------
    model : DraftModel
    num_blocks, block_size : int
        Of the target's KV pool.
    greedy : bool
        Take the most likely token (q is one-hot) instead of drawing from q.
    """

    def __init__(self, model: Model, num_blocks: int, block_size: int, greedy: bool) -> None:
        self.model = model
        self.greedy = greedy
        weight = next(iter(model.own_parameters().values()))
        self.device, self.dtype = weight.device, weight.dtype
        self.kv = PagedKV(model.kv_shapes(), num_blocks, block_size, self.dtype, self.device)
        self._laws = LawBuffer(self.device)

    def _writer(
        self,
        requests: Sequence[Request],
        depth: int,
        width: int,
        columns: Tensor | None = None,
        own_columns: bool = False,
    ) -> DraftWriter:
        """Where the drafts of a round go; see :class:`DraftWriter`."""
        return DraftWriter(
            requests,
            depth,
            width,
            self.greedy,
            self._laws,
            self.device,
            columns=columns,
            own_columns=own_columns,
            keep_details=self.keeps_details,
            coupled=self.coupled,
        )
