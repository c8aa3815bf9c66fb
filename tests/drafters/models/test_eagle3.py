from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from adaverify.drafters.models import Eagle3DraftModel
from drafters.models.reference import (
    DRAFT_VOCAB,
    HIDDEN,
    KEPT,
    TAPS,
    VOCAB,
    Outputs,
    Store,
    close,
    layer_fields,
    load_ours,
    save_reference,
)

ROWS = 11
ANCHORS = (0, 3, 8)
STEPS = 3


def save(folder: Path, target: Path, model_type: str = "llama", reduced: bool = False, **options: Any):
    layers = options.pop("layers", {})
    return save_reference(
        folder,
        target,
        "eagle3",
        layer_fields(model_type, **layers),
        reduced=reduced,
        eagle_aux_hidden_state_layer_ids=list(TAPS),
        **options,
    )


def chained(model: Eagle3DraftModel, tokens: Tensor, taps: Tensor, steps: int = STEPS) -> list[list[Tensor]]:
    """Logits of each step for each anchor: the rows up to the anchor's first, then one row a step."""
    store = Store(model, len(ANCHORS))
    batch = store.pack([tokens[: i + 1].tolist() for i in ANCHORS], [1] * len(ANCHORS), first_key=1)
    hidden = model.project(torch.cat([taps[: i + 1] for i in ANCHORS]))
    fed = model(batch.token_ids, hidden[None], batch.positions, batch.context)
    steps_logits = [list(model.head(fed[0]).split([i + 1 for i in ANCHORS]))]
    fed = fed[:, batch.logit_rows]
    for step in range(1, steps):
        batch = store.pack([[int(tokens[i + step])] for i in ANCHORS], [i + 1 + step for i in ANCHORS], first_key=1)
        fed = model(batch.token_ids, fed, batch.positions, batch.context)
        steps_logits.append(list(model.head(fed[0])))
    return steps_logits


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("llama", {}),
        ("qwen3", {"reduced": True}),
        ("llama", {"reduced": True, "norm_before_residual": True, "norm_before_fc": True}),
        ("qwen3", {"fc_norm": True, "norm_output": True, "layers": {"num_layers": 2}}),
        ("llama", {"layers": {"num_layers": 2, "attention_bias": True, "mlp_bias": True}}),
    ],
)
def test_chained_steps_give_the_references_teacher_forced_logits(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel, model_type: str, options: dict[str, Any]
):
    theirs = save(tmp_path, target_folder, model_type, **options)
    ours = load_ours(tmp_path, target)
    torch.manual_seed(1)
    tokens, taps = torch.randint(VOCAB, (ROWS,)), torch.randn(ROWS, len(TAPS) * HIDDEN)
    expected = Outputs(theirs.lm_head)
    with torch.no_grad():
        theirs(taps[None], tokens[None], torch.zeros(1, ROWS, dtype=torch.long), ttt_steps=STEPS)
        actual = chained(ours, tokens, taps)
    assert len(expected.all) == STEPS
    for i, logits in zip(ANCHORS, actual[0], strict=True):
        close(logits, expected.all[0][0, : i + 1])
    for step in range(1, STEPS):
        for i, logits in zip(ANCHORS, actual[step], strict=True):
            close(logits, expected.all[step][0, i])


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_sliding_window(tmp_path: Path, target_folder: Path, target: PreTrainedModel, model_type: str):
    window = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "num_layers": 2}
    if model_type == "qwen3":
        window["use_sliding_window"] = True
    theirs = save(tmp_path, target_folder, model_type, layers=window)
    ours = load_ours(tmp_path, target)
    torch.manual_seed(1)
    tokens, taps = torch.randint(VOCAB, (ROWS,)), torch.randn(ROWS, len(TAPS) * HIDDEN)
    expected = Outputs(theirs.lm_head)
    with torch.no_grad():
        theirs(taps[None], tokens[None], torch.zeros(1, ROWS, dtype=torch.long), ttt_steps=1)
        actual = chained(ours, tokens, taps, steps=1)
    close(actual[0][-1], expected.all[0][0, : ANCHORS[-1] + 1])


def test_head_of_a_reduced_vocabulary_comes_from_the_target_if_the_checkpoint_has_none(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel
):
    from safetensors.torch import load_file, save_file

    save(tmp_path, target_folder, reduced=True)
    tensors = load_file(tmp_path / "model.safetensors")
    trained = torch.randn(DRAFT_VOCAB, HIDDEN)
    save_file(tensors | {"lm_head.weight": trained}, tmp_path / "model.safetensors")
    assert torch.equal(load_ours(tmp_path, target).lm_head.weight, trained)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    ours = load_ours(tmp_path, target)
    assert torch.equal(ours.target_token_ids, KEPT)
    assert torch.equal(ours.lm_head.weight, target.lm_head.weight[KEPT])


def test_embedding_and_head_are_the_targets_own_parameters_unless_others_are_stored(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel
):
    from safetensors.torch import load_file, save_file

    save(tmp_path, target_folder)
    ours = load_ours(tmp_path, target)
    assert ours.embed_tokens.weight is target.get_input_embeddings().weight
    assert ours.lm_head.weight is target.lm_head.weight
    assert ours.target_token_ids is None
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"] + 1
    save_file(tensors, tmp_path / "model.safetensors")
    ours = load_ours(tmp_path, target)
    assert torch.equal(ours.embed_tokens.weight, target.get_input_embeddings().weight + 1)
    assert ours.lm_head.weight is target.lm_head.weight
