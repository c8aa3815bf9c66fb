"""Packed linear layers compute what plain ones do, and take their place where that helps."""

from __future__ import annotations

import pytest
import torch
from tests.support import Pair
from torch import nn

from adaverify.config import EngineConfig
from adaverify.engine import packed
from adaverify.engine.factory import build_engine
from adaverify.engine.packed import PackedLinear, pack_linears, padded_rows

needs_unit = pytest.mark.skipif(not packed._can_pack(), reason="this processor multiplies bfloat16 in software")


def make_model(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.Linear(48, 32, bias=False), nn.Linear(32, 4)).to(dtype)


@needs_unit
@pytest.mark.parametrize("num_rows", [1, 3, 16, 19, 200])
def test_results_are_those_of_plain_layers(num_rows: int) -> None:
    rows = torch.randn(2, num_rows, 64, dtype=torch.bfloat16)
    plain, model = make_model(), make_model()
    assert pack_linears(model) == 2  # the third is too small
    torch.testing.assert_close(model(rows), plain(rows), rtol=0.0, atol=0.0)


def test_few_sizes_are_computed_and_none_is_much_larger_than_asked() -> None:
    sizes = {count: padded_rows(count) for count in range(2049)}
    assert all(count <= size <= max(count, 1.125 * count) for count, size in sizes.items())
    assert all(sizes[size] == size for size in sizes.values())
    assert len({size for count, size in sizes.items() if count > 16}) == 7 * 8


@needs_unit
def test_a_shared_weight_is_packed_once_and_kept() -> None:
    embedding, head, other_head = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
    target, drafter = nn.ModuleDict({"embed": embedding, "head": head}), nn.ModuleDict({"head": other_head})
    target.bfloat16()
    head.weight = other_head.weight = embedding.weight
    pack_linears(target, drafter)
    first, second = target["head"], drafter["head"]
    assert isinstance(first, PackedLinear)
    assert isinstance(second, PackedLinear)
    assert first.packed is second.packed
    assert first.weight is embedding.weight


@needs_unit
def test_a_weight_of_one_layer_is_not_held_twice() -> None:
    model = make_model()
    pack_linears(model)
    assert model[0].weight.is_meta
    assert model[0].weight.shape == (48, 64)


def test_other_dtypes_are_left_alone() -> None:
    model = make_model(torch.float32)
    assert pack_linears(model) == 0
    assert type(model[0]) is nn.Linear


def test_nothing_is_packed_without_a_matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_can_pack", lambda: False)
    assert pack_linears(make_model()) == 0


@needs_unit
def test_an_engine_packs_its_target(pair: Pair) -> None:
    engine = build_engine(EngineConfig.build(model=str(pair.target), dtype="bfloat16", max_num_seqs=2))
    assert any(isinstance(module, PackedLinear) for module in engine.runner.model.modules())
