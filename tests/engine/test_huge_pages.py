"""What a step reads all of lies in huge pages, where the system gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.engine.test_packed import make_model, needs_unit
from torch import Tensor, nn

from adaverify.engine.huge_pages import _areas, _joined, in_huge_pages, use_huge_pages
from adaverify.engine.packed import pack_linears

_MIB = 1 << 20
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not _SETTING.exists() or "[madvise]" not in _SETTING.read_text(),
    reason="this system gives no huge pages on request, or gives them unasked",
)


def share_in_huge_pages(*tensors: Tensor) -> float:
    """Bytes in huge pages of the mappings that hold ``tensors``, over the bytes of the tensors."""
    starts = [tensor.data_ptr() for tensor in tensors]
    huge, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *rest = line.split()
        if not key.endswith(":"):
            first, end = (int(part, 16) for part in key.split("-"))
            inside = any(first <= start < end for start in starts)
        elif inside and key == "AnonHugePages:":
            huge += int(rest[0]) << 10
    return huge / sum(tensor.nbytes for tensor in tensors)


@needs_huge_pages
def test_fresh_memory_comes_in_huge_pages() -> None:
    plain = torch.empty(64 * _MIB, dtype=torch.uint8).fill_(1)
    assert share_in_huge_pages(plain) < 0.1
    huge = in_huge_pages(torch.empty(64 * _MIB, dtype=torch.uint8)).zero_()
    assert share_in_huge_pages(huge) > 0.9
    assert not huge.any()


@needs_huge_pages
def test_weights_move_and_keep_their_values() -> None:
    layers = nn.Sequential(*(nn.Linear(2048, 1024, bias=False) for _ in range(8)))
    before = [layer.weight.clone() for layer in layers]
    weights = [layer.weight for layer in layers]
    assert share_in_huge_pages(*weights) < 0.1
    use_huge_pages(layers)
    assert share_in_huge_pages(*weights) > 0.7
    assert all(torch.equal(old, new) for old, new in zip(before, weights, strict=True))


@needs_unit
def test_packed_weights_are_found() -> None:
    model = nn.Sequential(nn.Linear(1024, 512, bias=False)).bfloat16()
    pack_linears(model)
    ((start, end),) = _areas(model)
    assert end - start == torch.ops.mkldnn._nbytes(model[0].packed) >= 1024 * 512 * 2


def test_what_is_small_or_absent_is_left_alone() -> None:
    assert not _areas(make_model())
    assert not _areas(nn.Linear(2048, 1024, device="meta"))
    use_huge_pages(make_model())


def test_neighbours_share_their_huge_page() -> None:
    assert _joined([(5 * _MIB, 7 * _MIB), (_MIB, 3 * _MIB), (3 * _MIB + 1, 4 * _MIB)]) == [(0, 8 * _MIB)]
    assert _joined([(0, _MIB), (4 * _MIB, 5 * _MIB)]) == [(0, 2 * _MIB), (4 * _MIB, 6 * _MIB)]
