"""Rows grouped by the size of one quantity, for curves over load and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Bins:
    """Rows grouped by size.

    Attributes
    ----------
    code : int64 [N]
        Group of each row.
    size : float64 [B]
        Mean size in each group, increasing.
    count : int64 [B]
        Rows in each group, at least 1.
    """

    code: NDArray[np.int64]
    size: NDArray[np.float64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, sizes: NDArray[np.number[Any]], most: int) -> Bins:
        """One group a size; where there are more than ``most`` sizes, groups of about equally many rows.

        Parameters
        ----------
        sizes : [N], N >= 1
        most : int
        """
        edges = np.unique(sizes)
        if len(edges) > most:
            edges = np.unique(np.quantile(sizes, np.linspace(0, 1, most + 1)[:-1], method="lower"))
        code = np.searchsorted(edges, sizes, side="right") - 1
        count = np.bincount(code)
        return cls(code, np.bincount(code, weights=sizes) / count, count)

    def sum(self, values: NDArray[np.number[Any]]) -> NDArray[np.float64]:
        """Sum of ``values`` [N] in each group, [B]."""
        return np.asarray(np.bincount(self.code, weights=values), dtype=np.float64)

    def quantiles(self, values: NDArray[np.number[Any]], shares: Sequence[float]) -> NDArray[np.float64]:
        """Quantiles of ``values`` [N] in each group, [len(shares), B]."""
        in_order = np.asarray(values)[np.argsort(self.code, kind="stable")]
        groups = np.split(in_order, np.cumsum(self.count)[:-1])
        return np.stack([np.quantile(group, shares) for group in groups], axis=-1)
