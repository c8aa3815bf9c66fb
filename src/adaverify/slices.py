"""Rows looked at a few at a time, so that they stay in the processor's caches from pass to pass."""

from __future__ import annotations

from torch import Tensor


def row_slices(rows: Tensor, num_elements: int) -> list[slice]:
    """Slices of ``rows`` [N, V] that hold about ``num_elements`` each on a CPU, elsewhere all of them in one."""
    size = max(1, num_elements // rows.shape[-1] if rows.device.type == "cpu" else len(rows))
    return [slice(start, start + size) for start in range(0, len(rows), size)]
