"""What the drafters with a trained model share: the model, its store in the target's blocks, room for laws."""

from __future__ import annotations

from typing import Generic, TypeVar

from adaverify.drafters.base import Drafter
from adaverify.drafters.models import DraftModel
from adaverify.drafters.writer import LawBuffer
from adaverify.engine.kv_cache import PagedKV

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
