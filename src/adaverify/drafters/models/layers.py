"""Transformer layers of draft models: transformers' own Llama and Qwen3 classes over the paged attention."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn
from transformers import PretrainedConfig
from transformers.models.llama import modeling_llama
from transformers.models.qwen3 import modeling_qwen3

from adaverify.engine import attention
from adaverify.engine.kv_cache import LayerShape


@dataclass(frozen=True)
class LayerClasses:
    """The classes that one model type is made of."""

    attention: type[nn.Module]
    mlp: type[nn.Module]
    norm: type[nn.Module]
    rotary: type[nn.Module]
    decoder: type[nn.Module]


_CLASSES = {
    "llama": LayerClasses(
        modeling_llama.LlamaAttention,
        modeling_llama.LlamaMLP,
        modeling_llama.LlamaRMSNorm,
        modeling_llama.LlamaRotaryEmbedding,
        modeling_llama.LlamaDecoderLayer,
    ),
    "qwen3": LayerClasses(
        modeling_qwen3.Qwen3Attention,
        modeling_qwen3.Qwen3MLP,
        modeling_qwen3.Qwen3RMSNorm,
        modeling_qwen3.Qwen3RotaryEmbedding,
        modeling_qwen3.Qwen3DecoderLayer,
    ),
}


def layer_classes(config: PretrainedConfig) -> LayerClasses:
    """Classes for ``config.model_type``, ``llama`` or ``qwen3``."""
    return _CLASSES[config.model_type]


def paged_config(config: PretrainedConfig) -> PretrainedConfig:
    """A copy of ``config`` whose layers attend through :func:`adaverify.engine.attention.paged_attention`."""
    attention.register()
    config = copy.deepcopy(config)
    config._attn_implementation = attention.ATTENTION_NAME
    return config


def kv_shapes(config: PretrainedConfig, num_layers: int) -> dict[int, LayerShape]:
    """Key-value shape of each of ``num_layers`` layers."""
    shape = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim)
    return dict.fromkeys(range(num_layers), shape)


def is_sliding(config: PretrainedConfig, layer: int) -> bool:
    """Whether ``layer`` is declared as one with a sliding window."""
    layer_types = getattr(config, "layer_types", None) or []
    return layer < len(layer_types) and layer_types[layer] == "sliding_attention"


def window_kwargs(config: PretrainedConfig, layer: int) -> dict[str, int]:
    """What to hand ``layer`` so that its attention has its window: Qwen3's knows by itself, Llama's does not."""
    if config.model_type == "llama" and is_sliding(config, layer) and config.sliding_window is not None:
        return {"sliding_window": int(config.sliding_window)}
    return {}
