"""Memory in huge pages, for what a step reads all of.

A decode step on a CPU streams every weight once and gathers keys and values from all over their pool. In pages of 4 KiB
it looks up an address every 4 KiB, and in a virtual machine a lookup that misses walks two page tables. In pages of
2 MiB a step on a 135M model took .86 of the time for one request, .94 for 16. Linux gives them on request where its
setting is the usual ``madvise``; elsewhere nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import torch
from torch import Tensor, nn

from adaverify.engine.packed import PackedLinear

_HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
# Smaller tensors are read from the cache.
_SMALLEST = 256 << 10


def use_huge_pages(*models: nn.Module) -> None:
    """Move the weights of ``models``, packed or plain, to huge pages where they are on a CPU.

    Tensors stay where they are for the program: only the pages behind them change. A kernel without the call that
    moves them at once (before 6.1) does so in the background.
    """
    for start, end in _joined(_areas(*models)):
        _advise(start, end, _MADV_HUGEPAGE)
        # one by one: the system stops at the first page that it cannot make, such as one with a hole
        for page in range(start, end, _HUGE_PAGE):
            _advise(page, page + _HUGE_PAGE, _MADV_COLLAPSE)


def in_huge_pages(fresh: Tensor) -> Tensor:
    """The same tensor, whose memory will come in huge pages if it has not been written to yet."""
    area = _area(fresh)
    if area is not None:
        for start, end in _joined([area]):
            _advise(start, end, _MADV_HUGEPAGE)
    return fresh


def _areas(*models: nn.Module) -> set[tuple[int, int]]:
    areas = (_area(weight) for model in models for module in model.modules() for weight in _weights(module))
    return {area for area in areas if area is not None}


def _weights(module: nn.Module) -> Iterator[Tensor | None]:
    yield from module._parameters.values()
    yield from module._buffers.values()
    if isinstance(module, PackedLinear):
        yield module.packed


def _area(tensor: Tensor | None) -> tuple[int, int] | None:
    """First address of ``tensor`` and the first behind it; None if it is small or not in this process's memory."""
    if tensor is None or tensor.device.type != "cpu":
        return None
    if tensor.is_mkldnn:
        start, size = torch.ops.mkldnn.data_ptr(tensor), torch.ops.mkldnn._nbytes(tensor)
    else:
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    return (start, start + size) if size >= _SMALLEST else None


def _joined(areas: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The huge pages that ``areas`` touch, neighbours as one: weights lie side by side and share pages."""
    joined: list[tuple[int, int]] = []
    for first, behind in sorted(areas):
        start, end = first // _HUGE_PAGE * _HUGE_PAGE, -(-behind // _HUGE_PAGE) * _HUGE_PAGE
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _advise(start: int, end: int, advice: int) -> None:
    """Advice is free to be refused: parts that are not mapped, old kernels and other settings keep their pages."""
    madvise = _madvise()
    if madvise is not None:
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


@cache
def _madvise() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
