"""Tiny checkpoints of every trained method, in the format of ``speculators``, and the blocks that drafters make."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.support import Pair, save_tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from adaverify import LLM, SamplingParams
from adaverify.drafters.base import DraftBlock
from adaverify.drafters.models import build_draft_model, read_draft_config
from adaverify.engine.depth import DraftChoice
from adaverify.sampling.laws import DraftLaws

METHODS = ("eagle3", "mtp", "dflash", "dflash2", "dspark")
BLOCK_SIZE = 4
_REDUCED = ("eagle3", "dflash", "dspark")
_BLOCKS = {"block_size": BLOCK_SIZE, "mask_token_id": 5, "aux_hidden_state_layer_ids": [1, 2]}
_OPTIONS: dict[str, dict[str, Any]] = {
    "eagle3": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "norm_before_residual": True},
    "mtp": {},
    "dflash": _BLOCKS,
    "dflash2": _BLOCKS | {"selector_rank": 6, "selector_top_k": 10, "conv_kernel_size": 2, "conv_group_size": 8},
    "dspark": _BLOCKS | {"markov_rank": 6, "confidence_temperatures": [2.0, 0.5, 4.0, 1.0]},
}


def save_drafter(
    folder: Path, target: Path, method: str, seed: int = 3, layer_types: list[str] | None = None, **options: Any
) -> Path:
    """A random drafter for ``target``; EAGLE-3, DFlash and DSpark draft three quarters of the vocabulary only.

    Its layers are small beside the embeddings and hidden states that it shares with the target, so that it agrees with
    it now and then.

    Parameters
    ----------
    layer_types : list of str, optional
        One for each layer, with a sliding window of 6 where they say so; one full layer by default.
    """
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    vocab, width = model.config.vocab_size, model.config.hidden_size
    kept = torch.arange(vocab)[torch.arange(vocab) % 4 != 1] if method in _REDUCED else None
    layers = {
        "model_type": "llama" if method == "eagle3" else "qwen3",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": 40,
        "num_hidden_layers": len(layer_types or [""]),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    }
    if layer_types:
        layers |= {"layer_types": layer_types, "use_sliding_window": True, "sliding_window": 6}
    config = {
        "speculators_model_type": method,
        "transformer_layer_config": layers,
        "draft_vocab_size": vocab if kept is None else len(kept),
        **_OPTIONS[method],
        **options,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    drafter = build_draft_model(
        read_draft_config(folder, model.config), model, torch.float32, torch.device("cpu"), target_token_ids=kept
    )
    tensors = {}
    for name, parameter in drafter.own_parameters().items():
        noise = torch.randn_like(parameter) * (0.1 if parameter.ndim > 1 else 0.05)
        if name == "fc.weight":
            # the last tap, which is nearest to the target's logits, and a little of the others
            noise[:, -width:] += torch.eye(width)
        elif name.endswith("input_proj.weight"):
            # the token, and a little of the hidden state
            noise[:, :width] += torch.eye(width)
        tensors[name] = (parameter.detach() + noise).contiguous()
    for name in [name for name in tensors if name.endswith("o_proj.weight")]:
        # attention gives back what it reads: tokens of the text become likelier
        values = tensors[name.replace("o_proj", "v_proj")][:, :width].view(2, 12, width)
        tensors[name] += 3 * torch.cat([values[head // 2] for head in range(4)]).T
    if kept is not None:
        tensors["d2t"] = kept - torch.arange(len(kept))
    save_file(tensors, folder / "model.safetensors")
    return folder


def save_echoing_target(folder: Path, vocab_size: int = 24, scale: float = 1.0, echo: float = 2.0) -> Path:
    """A tiny target that likes to repeat its last token, which untrained drafters can guess."""
    save_tiny_model(folder, seed=1, vocab_size=vocab_size)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight.add_(model.model.embed_tokens.weight, alpha=echo).mul_(scale)
        model.lm_head.weight[vocab_size - 2] = 0.0
    model.save_pretrained(folder)
    return folder


def spoil(source: Path, folder: Path, tensor: str) -> Path:
    """A copy of a drafter with one NaN in the first weight whose name has ``tensor`` in it."""
    from safetensors.torch import load_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    name = next(name for name in tensors if tensor in name)
    tensors[name].view(-1)[0] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    return folder


def trained(folder: Path, target: Path, method: str, **options: Any) -> Pair:
    """``target`` with a random drafter in ``folder``."""
    return Pair(target, save_drafter(folder, target, method, **options), method)


@dataclass
class Call:
    """One block, with what each request held when it was drafted.

    Attributes
    ----------
    room : list of int
        Tokens that fit the blocks of each request.
    """

    texts: list[list[int]]
    params: list[SamplingParams]
    num_drafts: list[int]
    room: list[int]
    block: DraftBlock = field(repr=False)


def record(llm: LLM) -> list[Call]:
    """Every block that the drafter of ``llm`` makes from now on."""
    calls: list[Call] = []
    speculation = llm.engine.speculation
    drafter, most = speculation.drafter, speculation.num_speculative_tokens
    propose = drafter.propose

    def recording(requests, chunks, depth, go_on=None):
        texts = [list(request.token_ids) for request in requests]
        room = [len(request.blocks) * llm.config.block_size for request in requests]
        block = propose(requests, chunks, depth, go_on)
        num_drafts = [min(block.depth, request.max_drafts(most)) for request in requests]
        if block.depth:
            calls.append(Call(texts, [request.params for request in requests], num_drafts, room, copy_of(block)))
        return block

    drafter.propose = recording
    return calls


def at_random(llm: LLM, seed: int = 0) -> LLM:
    """Every depth from none to K, and every stop, by the dice: more ways than costs would ask for."""
    dice, speculation = random.Random(seed), llm.engine.speculation

    def choose(plan):
        depth = min(dice.randrange(speculation.num_speculative_tokens + 1), max(plan.num_drafts, default=0))
        while sum(min(depth, count) for count in plan.num_drafts) > plan.max_draft_budget:
            depth -= 1
        go_on = dice.choice([None, lambda *_: dice.random() < 0.5])
        return DraftChoice(depth, torch.tensor(plan.max_draft_budget), go_on)

    speculation.choose, speculation.depth_planner = choose, None
    return llm


def copy_of(block: DraftBlock) -> DraftBlock:
    """``block`` in storage of its own: drafters use that of the laws again."""

    def clone(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.clone()

    laws = block.laws and DraftLaws(block.laws.q.clone(), clone(block.laws.columns))
    tokens, features, confidence = block.token_ids.clone(), block.features.clone(), clone(block.confidence)
    return DraftBlock(tokens, features, laws, confidence, laws_per_request=block.laws_per_request)
