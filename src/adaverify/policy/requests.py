"""Which request each row of a batch belongs to: what an estimator may know beside the drafts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RequestRows:
    """The requests of a batch, one a row.

    Attributes
    ----------
    slot : Tensor, shape [R], int64
        Number of the request's seat: its own as long as it runs, then another request's.
    greedy : Tensor, shape [R], bool
        Requests whose target takes the most likely token (temperature 0).
    """

    slot: Tensor
    greedy: Tensor
