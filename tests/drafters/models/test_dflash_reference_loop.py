"""Whole generations, draft for draft, against the loop of the authors' ``dflash`` package."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config

from adaverify.drafters.models import DFlash2DraftModel, DFlashDraftModel
from drafters.models.reference import CPU, Store, bidirectional, layer_fields, load_ours, randomise

MASK_TOKEN = 21
BLOCK_SIZE = 4
NEW_TOKENS = 9
PROMPT = [4, 9, 1, 17, 2, 6]
DFLASH2 = {"conv_kernel_size": 3, "conv_group_size": 4, "selector_rank": 6, "selector_top_k": 5}


def save(folder: Path, layers: dict[str, Any], second: bool) -> torch.nn.Module:
    package = pytest.importorskip("dflash.model", reason="the dflash package is the reference")
    own = {
        "block_size": BLOCK_SIZE,
        "mask_token_id": MASK_TOKEN,
        "target_layer_ids": [0],
        **(DFLASH2 if second else {}),
    }
    fields = {name: value for name, value in layers.items() if name != "model_type"}
    config = Qwen3Config(**fields, num_target_layers=2, dflash_config=own)
    model = (package.DFlash2DraftModel if second else package.DFlashDraftModel)(config)
    if second:
        # the package leaves them as memory was
        for layer in model.layers:
            for conv in (layer.attention_conv, layer.mlp_conv):
                torch.nn.init.normal_(conv.base_kernel)
    randomise(model, seed=3)
    model.eval().save_pretrained(folder)
    return model


@torch.inference_mode()
def blocks_of(model: DFlashDraftModel, target: PreTrainedModel) -> tuple[list[list[int]], list[int]]:
    """The blocks given to the target, round by round, and the whole text, both greedy."""
    store, rounds = Store(model, 1), []
    text, known, last = list(PROMPT), 0, len(PROMPT) + NEW_TOKENS
    text.append(int(target(torch.tensor([text])).logits[0, -1].argmax()))
    while len(text) < last:
        states = target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[1][0]
        fresh = torch.arange(known, len(text) - 1)
        store.write_context(0, model.context(model.project(states[fresh]), fresh[None]), start=known)
        known, anchor = len(text) - 1, text[-1]
        rows = min(BLOCK_SIZE, last - known)
        batch = store.pack([[anchor, *[MASK_TOKEN] * (rows - 1)]], [known])
        hidden = model(batch.token_ids, batch.positions, bidirectional(batch.context), rows_per_block=rows)[0]
        block = [anchor, *drafts(model, hidden[1:], anchor)]
        rounds.append(block)
        verdict = target(torch.tensor([text[:-1] + block])).logits[0, known:].argmax(-1).tolist()
        accepted = 0
        while accepted < rows - 1 and block[accepted + 1] == verdict[accepted]:
            accepted += 1
        text += [*block[1 : accepted + 1], verdict[accepted]]
    return rounds, text[:last]


def drafts(model: DFlashDraftModel, hidden: Tensor, anchor: int) -> list[int]:
    logits = model.head(hidden)
    if not isinstance(model, DFlash2DraftModel):
        return logits.argmax(-1).tolist()
    path = [anchor]
    for row in range(len(hidden)):
        candidates, scores = model.select(logits[row : row + 1], hidden[row : row + 1], torch.tensor(path[-1:]))
        path.append(int(candidates[0, scores[0].argmax()]))
    return path[1:]


@pytest.mark.parametrize(
    "layers",
    [
        layer_fields(num_layers=2),
        layer_fields(num_layers=2, layer_types=["sliding_attention", "full_attention"])
        | {"use_sliding_window": True, "sliding_window": 3},
        layer_fields(num_layers=2, layer_types=["sliding_attention"] * 2, is_causal=False)
        | {"use_sliding_window": True, "sliding_window": 3},
    ],
    ids=["full", "sliding", "sliding-bidirectional"],
)
@pytest.mark.parametrize("second", [False, True], ids=["dflash", "dflash2"])
def test_every_block_of_a_greedy_generation(
    tmp_path: Path, target: PreTrainedModel, layers: dict[str, Any], second: bool
):
    theirs = save(tmp_path, layers, second)
    from dflash.model import dflash_generate

    seen: list[list[int]] = []
    hook = target.register_forward_pre_hook(lambda _module, args: seen.append(args[0][0].tolist()))
    try:
        expected = dflash_generate(theirs, target, torch.tensor([PROMPT]), NEW_TOKENS, None)
    finally:
        hook.remove()
    model = load_ours(tmp_path, target)
    assert model.own_parameters()["fc.weight"].device == CPU
    rounds, text = blocks_of(model, target)
    assert text == expected[0].tolist()
    assert rounds == [block for block in seen[1:] if len(block) > 1]
    assert len(rounds) > 3
