"""Projections that are computed together give what they give alone, whoever asks and in whatever order."""

from __future__ import annotations

import pytest
import torch
from tests.engine.test_packed import needs_unit
from tests.support import Pair
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from adaverify.config import EngineConfig
from adaverify.engine.factory import build_engine
from adaverify.engine.fused import JointLinear, Part, fuse_projections
from adaverify.engine.packed import PackedLinear


class Layer(nn.Module):
    def __init__(self, bias: bool = True, key_bias: bool | None = None, narrow: int | None = None) -> None:
        super().__init__()
        self.q_proj = nn.Linear(32, 48, bias=bias)
        self.k_proj = nn.Linear(narrow or 32, 16, bias=bias if key_bias is None else key_bias)
        self.v_proj = nn.Linear(32, 16, bias=bias)
        self.gate_proj, self.up_proj = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
        self.down_proj = nn.Linear(64, 32, bias=False)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        gated = self.gate_proj(rows).sigmoid() * self.up_proj(rows)
        return self.q_proj(rows), self.k_proj(rows), self.v_proj(rows), self.down_proj(gated)


def layers(**options: bool) -> tuple[Layer, Layer]:
    """The same layer twice."""
    plain, other = Layer(**options).double(), Layer(**options).double()
    other.load_state_dict(plain.state_dict())
    return plain, other


@pytest.mark.parametrize("bias", [True, False])
def test_results_are_those_of_the_single_layers(bias: bool) -> None:
    plain, fused = layers(bias=bias)
    assert fuse_projections(fused) == 2
    assert type(fused.down_proj) is nn.Linear
    for rows in (torch.randn(1, 32).double(), torch.randn(2, 5, 32).double()):
        torch.testing.assert_close(fused(rows), plain(rows), rtol=1e-12, atol=1e-12)


def test_other_rows_are_computed_anew_and_none_are_held() -> None:
    plain, fused = layers()
    fuse_projections(fused)
    first, second = torch.randn(2, 3, 32).double().unbind()
    fused.q_proj(first)
    fused.q_proj(first)
    for name in ("k_proj", "v_proj", "v_proj", "q_proj"):
        for rows in (second, first):
            torch.testing.assert_close(getattr(fused, name)(rows), getattr(plain, name)(rows), rtol=1e-12, atol=1e-12)
    joint = fused.q_proj.joint
    assert isinstance(joint, JointLinear)
    for order in (("q_proj", "k_proj", "v_proj"), ("v_proj", "q_proj", "k_proj")):
        for name in order:
            getattr(fused, name)(first)
        assert joint._rows is None
        assert joint._results == {}


@pytest.mark.parametrize("options", [{"key_bias": False}, {"narrow": 16}])
def test_layers_that_differ_are_left_alone(options: dict[str, bool]) -> None:
    layer = Layer(**options)
    assert fuse_projections(layer) == 1  # the gates
    assert type(layer.q_proj) is nn.Linear


@needs_unit
def test_a_model_says_the_same_with_its_projections_fused(pair: Pair) -> None:
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.bfloat16).eval()
    ids = torch.arange(1, 20)[None]
    with torch.inference_mode():
        plain = model(ids).logits
        assert fuse_projections(model) == 2 * model.config.num_hidden_layers
        torch.testing.assert_close(model(ids).logits, plain, rtol=0.0, atol=0.02)


@needs_unit
def test_an_engine_fuses_where_it_packs(pair: Pair) -> None:
    for dtype, expected in (("bfloat16", True), ("float32", False)):
        engine = build_engine(EngineConfig.build(model=str(pair.target), dtype=dtype, max_num_seqs=2))
        modules = list(engine.runner.model.modules())
        assert any(isinstance(module, Part) for module in modules) == expected
        assert any(isinstance(m, JointLinear) and isinstance(m.product, PackedLinear) for m in modules) == expected
