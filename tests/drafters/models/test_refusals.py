"""Every refusal names the file, what is wrong and what to do; none of them needs the reference library."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from adaverify.drafters.models import build_draft_model, read_draft_config
from adaverify.errors import ConfigError
from drafters.models.reference import CPU, DRAFT_VOCAB, HIDDEN, VOCAB, layer_fields, load_ours

MISSING = object()
EAGLE3 = {
    "speculators_model_type": "eagle3",
    "transformer_layer_config": layer_fields("llama"),
    "draft_vocab_size": VOCAB,
    "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
}
DFLASH = {
    "speculators_model_type": "dflash",
    "transformer_layer_config": layer_fields(),
    "draft_vocab_size": VOCAB,
    "aux_hidden_state_layer_ids": [1],
    "block_size": 4,
    "mask_token_id": 3,
}
DFLASH2 = DFLASH | {"speculators_model_type": "dflash2", "selector_rank": 4, "selector_top_k": 4}
DSPARK = DFLASH | {"speculators_model_type": "dspark", "markov_rank": 4}
MTP = {"speculators_model_type": "mtp", "transformer_layer_config": layer_fields()}
ZLAB = layer_fields() | {
    "architectures": ["DFlashDraftModel"],
    "block_size": 4,
    "dflash_config": {"target_layer_ids": [0], "mask_token_id": 3},
}
PUBLISHED_EAGLE3 = layer_fields("llama") | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCAB}


def write(folder: Path, values: dict[str, Any], **changes: Any) -> Path:
    values = {name: value for name, value in (values | changes).items() if value is not MISSING}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def layers(**changes: Any) -> dict[str, Any]:
    return layer_fields(**{"model_type": "qwen3"} | changes)


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (EAGLE3, {"speculators_model_type": "peagle"}, "'peagle' is not supported; supported are eagle3, mtp, dflash"),
        (PUBLISHED_EAGLE3, {"architectures": ["LlamaForCausalLM"]}, "no known kind of draft model .*LlamaForCausalLM"),
        (
            EAGLE3,
            {"transformer_layer_config": layers(hidden_size=48)},
            "48 numbers, the target's have 32.*another target",
        ),
        (EAGLE3, {"target_hidden_size": 64}, "64 numbers, the target's have 32"),
        (EAGLE3, {"transformer_layer_config": layers(vocab_size=99)}, "has 99 tokens, the target's 24"),
        (EAGLE3, {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, r"after layers \[0, 1, 3\], the target has 2 layers"),
        (EAGLE3, {"eagle_aux_hidden_state_layer_ids": None}, r"after layers \[2, 1, -1\], the target has 2 layers"),
        (EAGLE3, {"draft_vocab_size": 99}, "draft_vocab_size 99 is not within the target's 24 tokens"),
        (EAGLE3, {"norm_before_fc": True, "fc_norm": True}, "exclude each other"),
        (EAGLE3, {"transformer_layer_config": MISSING}, "the key transformer_layer_config is missing"),
        (
            EAGLE3,
            {"transformer_layer_config": layer_fields("gpt2")},
            "'gpt2' are not supported for eagle3; .*llama, qwen3",
        ),
        (EAGLE3, {"transformer_layer_config": layers(num_hidden_layers="x")}, "transformer_layer_config is not valid"),
        (
            EAGLE3,
            {"transformer_layer_config": layers(rope_parameters={"full_attention": {}})},
            "rope_parameters .* not one",
        ),
        (MTP, {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers 2 is not supported, only 1"),
        (MTP, {"draft_vocab_size": 10}, r"mtp with a reduced draft vocabulary \(10\)"),
        (DFLASH, {"transformer_layer_config": layers(model_type="llama")}, "'llama' are not supported for dflash"),
        (DFLASH, {"block_size": MISSING}, "the key block_size is missing"),
        (DFLASH, {"mask_token_id": None}, "the key mask_token_id is missing"),
        (DFLASH, {"aux_hidden_state_layer_ids": None}, "the key aux_hidden_state_layer_ids is missing"),
        (DFLASH, {"aux_hidden_state_layer_ids": ["one"]}, "a value of the wrong kind"),
        (DFLASH, {"block_size": 1}, "block_size 1 leaves nothing to draft"),
        (DFLASH, {"mask_token_id": 24}, "mask_token_id 24 is not one of the 24 tokens"),
        (DFLASH2, {"draft_vocab_size": 10}, r"dflash2 with a reduced draft vocabulary \(10\)"),
        (DFLASH2, {"conv_group_size": 5}, "conv_group_size 5 does not divide the hidden size 32"),
        (DFLASH2, {"selector_top_k": 25}, "selector_top_k 25 is not within the 24 tokens"),
        (DSPARK, {"markov_head_type": "lstm"}, "markov_head_type 'lstm' is not one of vanilla, gated, rnn"),
        (DSPARK, {"markov_rank": 0}, "confidence_head_with_markov needs a markov_rank above 0"),
        (DSPARK, {"confidence_temperatures": [1.0]}, r"must be 4 positive numbers, not \[1.0\]"),
        (DSPARK, {"confidence_temperatures": [1.0, 1.0, 0.0, 1.0]}, "must be 4 positive numbers"),
        (ZLAB, {"markov_rank": 4}, "a DFlash architecture .* with a markov_rank; .*write DSparkDraftModel"),
        (
            ZLAB,
            {"dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 3}},
            "last layer, read after its final norm",
        ),
        (ZLAB, {"dflash_config": {"mask_token_id": 3}}, "the key aux_hidden_state_layer_ids is missing"),
        (
            ZLAB,
            {"dflash_config": ZLAB["dflash_config"] | {"use_swa": True}},
            "use_swa = True is not supported, only False",
        ),
        (ZLAB, {"layer_types": ["sliding_attention"]}, "no use_sliding_window and sliding_window"),
        (ZLAB, {"rope_is_neox_style": False}, "rope_is_neox_style = False is not supported"),
        (PUBLISHED_EAGLE3, {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = False"),
    ],
)
def test_configurations(
    tmp_path: Path, target: PreTrainedModel, values: dict[str, Any], changes: dict[str, Any], message: str
):
    write(tmp_path, values, **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        read_draft_config(tmp_path, target.config)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize("values", [EAGLE3, MTP, DFLASH, DFLASH2, DSPARK, ZLAB])
def test_what_the_refusals_start_from_is_accepted(tmp_path: Path, target: PreTrainedModel, values: dict[str, Any]):
    config = read_draft_config(write(tmp_path, values), target.config)
    model = build_draft_model(config, target, torch.float32, CPU)
    assert model.kv_shapes()[0].key_dim == 12


def test_no_configuration(tmp_path: Path, target: PreTrainedModel):
    with pytest.raises(ConfigError, match=r"config.json cannot be read .*give the folder of a draft model"):
        read_draft_config(tmp_path, target.config)
    for text in ("{", "[1]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_draft_config(tmp_path, target.config)


def saved(folder: Path, target: PreTrainedModel, **changes: Any) -> dict[str, torch.Tensor]:
    """The tensors of a drafter that loads."""
    config = read_draft_config(write(folder, EAGLE3, **changes), target.config)
    tensors = {
        name: p.detach().clone()
        for name, p in build_draft_model(config, target, torch.float32, CPU).own_parameters().items()
    }
    if config.reduced_vocab:
        tensors["d2t"] = torch.arange(config.draft_vocab_size)
    save_file(tensors, folder / "model.safetensors")
    load_ours(folder, target)
    return tensors


def test_weights(tmp_path: Path, target: PreTrainedModel):
    tensors = saved(tmp_path, target)
    fc = tensors.pop("fc.weight")
    tensors["norm.weight"] = torch.ones(HIDDEN + 1)
    tensors["surplus.bias"] = torch.ones(3)
    tensors["verifier_norm.weight"] = torch.ones(5)
    tensors["embed_tokens.weight"] = torch.ones(VOCAB, HIDDEN + 2)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError) as caught:
        load_ours(tmp_path, target)
    message = str(caught.value)
    assert f"fc.weight {list(fc.shape)} is missing" in message
    assert "norm.weight is [33], expected [32]" in message
    assert "embed_tokens.weight is [24, 34], expected [24, 32]" in message
    assert "surplus.bias [3] is not known" in message
    assert "verifier" not in message


def test_a_drafter_of_another_width_needs_its_own_embedding_and_head(tmp_path: Path, target: PreTrainedModel):
    wide = layer_fields("llama") | {"hidden_size": 48}
    config = read_draft_config(
        write(tmp_path, EAGLE3, transformer_layer_config=wide, target_hidden_size=HIDDEN), target.config
    )
    tensors = dict(build_draft_model(config, target, torch.float32, CPU).own_parameters())
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"embed_tokens.weight \[24, 48\] is missing; lm_head.weight \[24, 48\] is"):
        load_ours(tmp_path, target)
    own = {"embed_tokens.weight": torch.randn(VOCAB, 48), "lm_head.weight": torch.randn(VOCAB, 48)}
    save_file(tensors | own, tmp_path / "model.safetensors")
    model = load_ours(tmp_path, target)
    assert torch.equal(model.lm_head.weight, own["lm_head.weight"])
    assert model.project(torch.randn(2, 3 * HIDDEN)).shape == (2, 48)


@pytest.mark.parametrize(
    ("d2t", "message"),
    [
        (None, r"d2t \[10\] is missing"),
        (torch.zeros(9, dtype=torch.long), r"d2t is \[9\], expected \[10\]"),
        (torch.full((DRAFT_VOCAB,), 15), "d2t does not map 10 draft tokens to different ones of the target's 24"),
        (-torch.arange(DRAFT_VOCAB), "d2t does not map 10 draft tokens to different ones"),
    ],
)
def test_draft_vocabulary(tmp_path: Path, target: PreTrainedModel, d2t: torch.Tensor | None, message: str):
    tensors = saved(tmp_path, target, draft_vocab_size=DRAFT_VOCAB)
    del tensors["d2t"]
    save_file(tensors if d2t is None else tensors | {"d2t": d2t}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        load_ours(tmp_path, target)


def test_unreadable_checkpoint(tmp_path: Path, target: PreTrainedModel):
    saved(tmp_path, target)
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ConfigError, match=r"model.safetensors cannot be read .*fetch the draft model again"):
        load_ours(tmp_path, target)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"holds neither model\.safetensors nor pytorch_model\.bin"):
        load_ours(tmp_path, target)
