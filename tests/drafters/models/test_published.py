"""The same weights in the layouts that the methods' authors publish."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from adaverify.drafters.models import DraftModel
from drafters.models import blocks
from drafters.models.reference import DRAFT_VOCAB, KEPT, TAPS, layer_fields, load_ours, save_reference

# the same layer, counted from the embedding and from the first layer's output
BLOCK_TAPS = (1,)
ZLAB_IDS = [0]


def rewrite(
    folder: Path, config: dict[str, Any], rename: dict[str, str] | None = None, drop: tuple[str, ...] = ()
) -> None:
    """Replace a saved drafter's configuration, and change names in its checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    for old, new in (rename or {}).items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    save_file({name: t for name, t in tensors.items() if name not in drop}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def same(one: DraftModel, other: DraftModel) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), name


def test_eagle3_with_a_midlayer(tmp_path: Path, target_folder: Path, target: PreTrainedModel):
    layers = layer_fields("llama")
    save_reference(tmp_path, target_folder, "eagle3", layers, reduced=True, eagle_aux_hidden_state_layer_ids=list(TAPS))
    before = load_ours(tmp_path, target)
    published = {name: value for name, value in layers.items() if name != "rope_parameters"}
    published |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "rope_theta": 1000.0,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS)},
        "torch_dtype": "float16",
        "transformers_version": "4.46.2",
    }
    rewrite(tmp_path, published, {"layers.0.": "midlayer."}, drop=("embed_tokens.weight",))
    after = load_ours(tmp_path, target)
    same(after, before)
    assert torch.equal(after.target_token_ids, KEPT)
    assert after.config.tap_layer_ids == TAPS
    assert after.config.layer_config.rope_parameters["rope_theta"] == 1000.0


def zlab(layers: dict[str, Any], architecture: str, **nested: Any) -> dict[str, Any]:
    return layers | {
        "architectures": [architecture],
        "auto_map": {"AutoModel": f"dflash.{architecture}"},
        "num_target_layers": 2,
        "dflash_config": {"target_layer_ids": ZLAB_IDS, "mask_token_id": blocks.MASK_TOKEN, **nested},
    }


@pytest.mark.parametrize("nested", [False, True])
def test_dflash(tmp_path: Path, target_folder: Path, target: PreTrainedModel, nested: bool):
    layers = layer_fields()
    options = blocks.OPTIONS | {"aux_hidden_state_layer_ids": list(BLOCK_TAPS)}
    save_reference(tmp_path, target_folder, "dflash", layers, **options)
    before = load_ours(tmp_path, target)
    config = zlab(layers, "DFlashDraftModel", input_embedding_scale=2.0, final_logit_softcapping=5.0)
    (config["dflash_config"] if nested else config)["block_size"] = blocks.BLOCK_SIZE
    rewrite(tmp_path, config)
    after = load_ours(tmp_path, target)
    same(after, before)
    assert after.config.tap_layer_ids == BLOCK_TAPS
    assert (after.config.method, after.config.block_size, after.config.max_draft_tokens) == ("dflash", 4, 3)
    assert after.config.mask_token_id == blocks.MASK_TOKEN
    hidden = torch.randn(3, 32)
    torch.testing.assert_close(after.head(hidden), torch.tanh(before.head(hidden) / 5) * 5)
    assert after.config.embedding_scale == 2.0


def test_dflash2(tmp_path: Path, target_folder: Path, target: PreTrainedModel):
    layers, own = layer_fields(), {"selector_rank": 6, "selector_top_k": 5, "conv_kernel_size": 3, "conv_group_size": 4}
    options = blocks.OPTIONS | {"aux_hidden_state_layer_ids": list(BLOCK_TAPS)}
    save_reference(tmp_path, target_folder, "dflash2", layers, **options, **own)
    before = load_ours(tmp_path, target)
    config = zlab(layers, "DFlash2DraftModel", block_size=blocks.BLOCK_SIZE, **own)
    rewrite(tmp_path, config, {"_codebook": "_codebook.weight"})
    after = load_ours(tmp_path, target)
    same(after, before)
    assert after.config.method == "dflash2"
    assert [getattr(after.config, name) for name in own] == list(own.values())


@pytest.mark.parametrize("layout", ["DeepSpec", "nested"])
def test_dspark(tmp_path: Path, target_folder: Path, target: PreTrainedModel, layout: str):
    layers = layer_fields()
    options = blocks.OPTIONS | {"aux_hidden_state_layer_ids": list(BLOCK_TAPS)}
    save_reference(tmp_path, target_folder, "dspark", layers, **options, markov_rank=6)
    before = load_ours(tmp_path, target)
    own = {
        "mask_token_id": blocks.MASK_TOKEN,
        "target_layer_ids": ZLAB_IDS,
        "markov_rank": 6,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_temperatures": [1.5, 0.9, 1.5, 1.6],
    }
    config = layers | {"block_size": blocks.BLOCK_SIZE}
    if layout == "DeepSpec":
        config |= {"architectures": ["Qwen3DSparkModel"], **own}
    else:
        config |= {"architectures": ["DFlashDraftModel"], "dflash_config": {"projector_type": "dspark", **own}}
    rewrite(tmp_path, config)
    after = load_ours(tmp_path, target)
    same(after, before)
    assert after.config.tap_layer_ids == BLOCK_TAPS
    assert after.config.max_draft_tokens == blocks.BLOCK_SIZE
    assert after.config.confidence_temperatures == (1.5, 0.9, 1.5, 1.6)


def test_sharded_and_pickled_checkpoints(tmp_path: Path, target_folder: Path, target: PreTrainedModel):
    save_reference(tmp_path, target_folder, "dflash", layer_fields(), **blocks.OPTIONS)
    before = load_ours(tmp_path, target)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    same(load_ours(tmp_path, target), before)
    (tmp_path / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    weight_map = {name: f"part{i % 2}.safetensors" for i, name in enumerate(names)}
    for part in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == part}, tmp_path / part)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    same(load_ours(tmp_path, target), before)
