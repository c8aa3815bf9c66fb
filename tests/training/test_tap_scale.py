"""Training on taps of one size, with the sizes folded into the checkpoint."""

from __future__ import annotations

import pytest
import torch

from adaverify.engine import loader
from adaverify.training.hidden import Sample
from adaverify.training.recipes import RECIPES, DraftSize, TargetInfo

pytest.importorskip("speculators", reason="training needs the speculators package")

TAPS = (0, 1, 2)
SIZES = torch.logspace(-1, 2, 3 * 32)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(8):
        taps = torch.randn(20, 96, generator=generator) * SIZES
        taps[0] *= 100
        made.append(
            Sample(
                str(i),
                torch.randint(0, 40, (20,), generator=generator),
                4,
                taps,
                torch.randn(20, 32, generator=generator),
            )
        )
    return made


@pytest.fixture
def recipe(target):
    def make(seed: int = 0):
        loaded = loader.load_model(str(target), "float32", torch.device("cpu"), "target")
        torch.manual_seed(seed)
        info = TargetInfo(loaded.model, loaded.name, "tiny", mask_token_id=0)
        return RECIPES["dflash"](info, DraftSize(draft_vocab_size=40, block_size=4), torch.arange(40), TAPS)

    return make


@torch.no_grad()
def mixed(recipe, samples) -> torch.Tensor:
    """What the draft model makes of the taps while its loss is computed."""
    caught: list[torch.Tensor] = []
    hook = recipe.model.fc.register_forward_hook(lambda module, args, output: caught.append(output))
    recipe.model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        recipe.loss(samples, 64)
    hook.remove()
    return caught[0].float()


def test_sizes_are_measured_without_the_first_token(recipe, samples):
    made = recipe()
    made.prepare(samples)
    torch.testing.assert_close(made.tap_scale, SIZES, rtol=0.3, atol=0)


def test_the_checkpoint_does_on_raw_taps_what_training_did_on_scaled_ones(recipe, samples):
    trained, loaded = recipe(0), recipe(1)
    trained.prepare(samples)
    expected = mixed(trained, samples)
    loaded.take_over({name: t.float() for name, t in trained.saved_tensors.items() if t.is_floating_point()})
    torch.testing.assert_close(mixed(loaded, samples), expected, rtol=0.05, atol=0.05 * float(expected.std()))


def test_a_checkpoint_taken_over_starts_where_it_ended(recipe, samples):
    first, second = recipe(0), recipe(1)
    first.prepare(samples)
    second.prepare(samples)
    second.take_over({name: t.float() for name, t in first.saved_tensors.items() if t.is_floating_point()})
    torch.testing.assert_close(second.model.fc.weight, first.model.fc.weight, rtol=0.01, atol=1e-4)
