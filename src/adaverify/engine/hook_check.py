"""Start-up check that a model computes the same through the paged attention as on its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from adaverify.engine import attention
from adaverify.engine.batch import Segment, pack
from adaverify.engine.kv_cache import LayerShape, PagedKV
from adaverify.errors import ConfigError

_PROBE_NAME = "adaverify_probe"
_LENGTHS = (11, 7)
_CUT = 5
_BLOCK_SIZE = 4
# largest error allowed, relative to the spread of the logits
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2, torch.float16: 0.05}


@torch.inference_mode()
def hook_model(model: PreTrainedModel) -> dict[int, LayerShape]:
    """Route the model's attention through the paged store and prove that it still computes the same.

    Two sequences are run alone through the model's own attention, then together as one packed row: first
    their prompts, then a continuation of each. A model that mixes tokens anywhere but in the hooked attention
    (state-space layers, its own position bias, a private mask) cannot pass.

    Returns
    -------
    dict of int to LayerShape
        Key-value shape of each attention layer.

    Raises
    ------
    ConfigError
        The architecture does not take a custom attention function, or its results differ.
    """
    name = type(model).__name__
    vocab_size = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index, arg-type]
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(vocab_size, (length,), generator=generator).to(model.device) for length in _LENGTHS]
    refusal = (
        f"{name} cannot be served: it does not compute the same through a custom attention function ({{}}). "
        "Use a causal language model built on transformers' attention interface, such as Llama, Qwen, Gemma or Mistral."
    )
    try:
        expected = [model(input_ids=ids[None], use_cache=False).logits[0].float() for ids in sequences]
        shapes = _probe_shapes(model, sequences[0])
        attention.register()
        model.set_attn_implementation(attention.ATTENTION_NAME)
        actual = _run_packed(model, shapes, sequences)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(refusal.format(f"{type(error).__name__}: {error}")) from error
    scale = torch.cat(expected).std()
    worst = max(float((a - b).abs().max() / scale) for a, b in zip(expected, actual, strict=True))
    if not worst <= _TOLERANCE[model.dtype]:
        raise ConfigError(refusal.format(f"relative error {worst:.2g}, allowed {_TOLERANCE[model.dtype]:.2g}"))
    return shapes


def _probe_shapes(model: PreTrainedModel, ids: Tensor) -> dict[int, LayerShape]:
    """Key-value shape of each layer, read off one call of every attention layer."""
    shapes: dict[int, LayerShape] = {}

    def probe(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **_: Any
    ) -> tuple[Tensor, None]:
        shapes[int(module.layer_idx)] = LayerShape(key.shape[1], key.shape[3], value.shape[3])  # type: ignore[arg-type]
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None

    AttentionInterface.register(_PROBE_NAME, probe)
    AttentionMaskInterface.register(_PROBE_NAME, lambda *args, **kwargs: None)
    model.set_attn_implementation(_PROBE_NAME)
    model(input_ids=ids[None], use_cache=False)
    if not shapes:
        raise ConfigError(
            f"{type(model).__name__} cannot be served: it never calls transformers' attention interface. "
            "Use a causal language model built on it, such as Llama, Qwen, Gemma or Mistral."
        )
    return shapes


def _run_packed(model: PreTrainedModel, shapes: dict[int, LayerShape], sequences: list[Tensor]) -> list[Tensor]:
    """Logits of both sequences when their prompts share one packed row and their continuations the next."""
    blocks_each = 3
    kv = PagedKV(shapes, 1 + blocks_each * len(sequences), _BLOCK_SIZE, model.dtype, model.device)
    tables = [list(range(1 + i * blocks_each, 1 + (i + 1) * blocks_each)) for i in range(len(sequences))]
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for first, last in ((0, _CUT), (_CUT, None)):
        segments = [
            Segment(ids[first:last].tolist(), first, table, len(ids[first:last]))
            for ids, table in zip(sequences, tables, strict=True)
        ]
        batch = pack(segments, kv, model.device, max_padded_query=4)
        logits = model(
            input_ids=batch.token_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            paged=batch.context,
        ).logits[0]
        for part, rows in zip(parts, logits.float().split([s.num_logits for s in segments]), strict=True):
            part.append(rows)
    return [torch.cat(part) for part in parts]
