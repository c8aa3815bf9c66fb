"""Tiny random drafters of the ``speculators`` library, saved, and ours over a paged store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from adaverify.drafters.models import DraftModel, load_draft_model
from adaverify.engine.attention import PagedContext
from adaverify.engine.batch import PackedBatch, Segment, pack
from adaverify.engine.kv_cache import PagedKV
from support import save_tiny_model

CPU = torch.device("cpu")
VOCAB = 24
DRAFT_VOCAB = 10
HIDDEN = 32
TAPS = (0, 1, 2)
BLOCK = 4
BLOCKS_EACH = 6
# target ids of a reduced vocabulary
KEPT = torch.tensor([0, 2, 3, 7, 8, 11, 15, 16, 20, 22])


def save_target(folder: Path) -> Path:
    return save_tiny_model(folder, seed=5, vocab_size=VOCAB)


def load_target(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)


def layer_fields(model_type: str = "qwen3", num_layers: int = 1, **options: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 40,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        **options,
    }


def save_reference(
    folder: Path,
    target: Path,
    method: str,
    layers: dict[str, Any],
    reduced: bool = False,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """A random drafter of speculators for ``target``, which ``folder`` then holds."""
    pytest.importorskip("speculators", reason="the speculators library is the reference")
    from speculators.config import SpeculatorModelConfig, SpeculatorsConfig, VerifierConfig
    from speculators.model import SpeculatorModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    fields = dict(layers)
    layer_config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    layer_config._attn_implementation = "eager"
    config = SpeculatorModelConfig.registry[method](
        transformer_layer_config=layer_config,
        speculators_config=SpeculatorsConfig(
            algorithm=method,
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(str(target)),
        ),
        **({} if method == "mtp" else {"draft_vocab_size": DRAFT_VOCAB if reduced else VOCAB}),
        **options,
    )
    model = SpeculatorModel.registry[method](config)
    randomise(model, seed)
    if reduced:
        t2d = torch.zeros(VOCAB, dtype=torch.bool)
        t2d[KEPT] = True
        model.load_vocab_mappings(t2d, KEPT - torch.arange(DRAFT_VOCAB))
    model.load_verifier_weights()
    model.eval().save_pretrained(folder)
    return model


def randomise(model: nn.Module, seed: int) -> None:
    """Random weights everywhere but in what stands for the target's embedding and head."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.isnan().any():
                parameter.add_(torch.randn_like(parameter) * 0.2)


def load_ours(folder: Path, target: PreTrainedModel) -> DraftModel:
    return load_draft_model(folder, target, torch.float32, CPU)


class Store:
    """Requests of ours, each with blocks of its own."""

    def __init__(self, model: DraftModel, num_requests: int, dtype: torch.dtype = torch.float32) -> None:
        self.kv = PagedKV(model.kv_shapes(), 1 + num_requests * BLOCKS_EACH, BLOCK, dtype, CPU)
        self.tables = [list(range(1 + i * BLOCKS_EACH, 1 + (i + 1) * BLOCKS_EACH)) for i in range(num_requests)]

    def pack(self, tokens: Sequence[Sequence[int]], starts: Sequence[int], first_key: int = 0) -> PackedBatch:
        """One segment a request."""
        segments = [
            Segment(list(ids), start, table, 1) for ids, start, table in zip(tokens, starts, self.tables, strict=True)
        ]
        return pack(segments, self.kv, CPU, max_padded_query=8, first_key=first_key)

    def write_context(self, request: int, pairs: list[tuple[Tensor, Tensor]], start: int = 0) -> None:
        positions = torch.arange(start, start + pairs[0][0].shape[1])
        slots = torch.tensor(self.tables[request])[positions // BLOCK] * BLOCK + positions % BLOCK
        for i, (key, value) in enumerate(pairs):
            self.kv.layer(i).write(slots, key, value)


def bidirectional(context: PagedContext) -> PagedContext:
    """Let every row see its request's last one."""
    groups = [
        replace(g, query_positions=g.query_positions[:, -1:].expand_as(g.query_positions), masks={})
        for g in context.groups
    ]
    return replace(context, groups=groups)


class Outputs:
    """Everything that a module gives from now on."""

    def __init__(self, module: nn.Module) -> None:
        self.all: list[Tensor] = []
        module.register_forward_hook(lambda _module, _args, output: self.all.append(output.detach().clone()))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
