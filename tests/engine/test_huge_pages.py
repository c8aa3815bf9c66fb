"""What a step reads all of lies in huge pages, where the system gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.engine.test_packed import make_model, needs_unit
from torch import Tensor, nn

from adaverify.engine.huge_pages import (
    _MADV_COLLAPSE,
    _MADV_HUGEPAGE,
    _advise,
    _areas,
    _joined,
    in_huge_pages,
    use_huge_pages,
)
from adaverify.engine.packed import pack_linears

_MIB = 1 << 20
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not _SETTING.exists() or "[madvise]" not in _SETTING.read_text(),
    reason="this system gives no huge pages on request, or gives them unasked",
)


def mappings_of(*tensors: Tensor) -> list[dict[str, list[str]]]:
    """What the system says of each mapping that holds the start of one of ``tensors``."""
    starts = [tensor.data_ptr() for tensor in tensors]
    mappings: list[dict[str, list[str]]] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *rest = line.split()
        if not key.endswith(":"):
            first, end = (int(part, 16) for part in key.split("-"))
            inside = any(first <= start < end for start in starts)
            if inside:
                mappings.append({})
        elif inside:
            mappings[-1][key.rstrip(":")] = rest
    return mappings


def are_advised(*tensors: Tensor) -> bool:
    """Whether huge pages were asked for; how many are given depends on what memory is free just then."""
    return all("hg" in mapping["VmFlags"] for mapping in mappings_of(*tensors))


@needs_huge_pages
def test_fresh_memory_will_come_in_huge_pages() -> None:
    plain = torch.empty(64 * _MIB, dtype=torch.uint8).fill_(1)
    assert not are_advised(plain)
    huge = in_huge_pages(torch.empty(64 * _MIB, dtype=torch.uint8)).zero_()
    assert are_advised(huge)
    assert sum(int(mapping["AnonHugePages"][0]) for mapping in mappings_of(huge)) > 0
    assert not huge.any()


@needs_huge_pages
def test_weights_move_and_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[int, list[int]] = {_MADV_HUGEPAGE: [], _MADV_COLLAPSE: []}

    def advise(start: int, end: int, advice: int) -> None:
        given[advice].append(end - start)
        _advise(start, end, advice)

    monkeypatch.setattr("adaverify.engine.huge_pages._advise", advise)
    layers = nn.Sequential(*(nn.Linear(2048, 1024, bias=False) for _ in range(8)))
    before = [layer.weight.clone() for layer in layers]
    weights = [layer.weight for layer in layers]
    assert not are_advised(*weights)
    use_huge_pages(layers)
    assert are_advised(*weights)
    assert sum(given[_MADV_HUGEPAGE]) == sum(given[_MADV_COLLAPSE]) >= 64 * _MIB
    assert set(given[_MADV_COLLAPSE]) == {2 * _MIB}  # one that cannot be made does not keep the others small
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
