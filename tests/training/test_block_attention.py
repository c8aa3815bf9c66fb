"""The block attention against speculators' own, over its dense mask."""

from __future__ import annotations

import pytest
import torch

from adaverify.engine import loader
from adaverify.training.hidden import Sample
from adaverify.training.recipes import RECIPES, DraftSize, TargetInfo
from adaverify.training.recipes import block as recipes

pytest.importorskip("speculators", reason="training needs the speculators package")


def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    ids = [torch.randint(0, 40, (length,), generator=generator) for length in (20, 13, 27)]
    return [Sample(str(i), row, 3, normal(len(row), 96), normal(len(row), 32)) for i, row in enumerate(ids)]


@pytest.mark.parametrize("method", ["dflash", "dflash2", "dspark"])
def test_loss_and_gradients_are_those_of_the_dense_mask(target, method, monkeypatch):
    def run(replace: bool) -> tuple[float, dict[str, torch.Tensor]]:
        with monkeypatch.context() as patch:
            if not replace:
                patch.setattr(recipes, "use_block_attention", lambda model: None)
            loaded = loader.load_model(str(target), "float32", torch.device("cpu"), "target")
            torch.manual_seed(0)
            info = TargetInfo(loaded.model, loaded.name, "tiny", mask_token_id=0)
            size = DraftSize(draft_vocab_size=40, block_size=4, rank=4)
            recipe = RECIPES[method](info, size, torch.arange(40), (0, 1, 2))
        model = recipe.model
        assert (model.layers[0].self_attn.config._attn_implementation == "sdpa") != replace
        with torch.no_grad():
            for layer in model.layers:  # the start's small output would hide what attention does
                layer.self_attn.o_proj.weight.mul_(10)
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = recipe.loss(samples(), 64)
        loss.backward()
        return float(loss), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    (dense_loss, dense), (own_loss, own) = run(replace=False), run(replace=True)
    assert own_loss == pytest.approx(dense_loss, rel=5e-3)
    assert own.keys() == dense.keys()
    for name in own:
        if "self_attn" in name or name == "fc.weight":
            difference = (own[name] - dense[name]).norm() / dense[name].norm()
            assert difference < 0.05, name
