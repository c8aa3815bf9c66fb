from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from adaverify.engine.hook_check import hook_model
from adaverify.engine.kv_cache import LayerShape
from adaverify.errors import ConfigError

COMMON = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {"head_dim": 8}
WINDOW = {"sliding_window": 4}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
PASSING = {
    "llama": HEADS,
    "qwen2": {},
    "qwen3": HEADS,
    "qwen3_moe": HEADS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma": HEADS,
    "gemma2": HEADS | WINDOW | {"query_pre_attn_scalar": 8},
    "gemma3_text": HEADS | WINDOW | {"query_pre_attn_scalar": 8, "num_hidden_layers": 6},
    "mistral": HEADS | WINDOW,
    "mixtral": HEADS | EXPERTS,
    "phi": {},
    "gpt2": {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "gpt_neox": {},
    "gpt_oss": HEADS | WINDOW | EXPERTS,
    "deepseek_v3": {
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
    "glm4": HEADS,
    "olmo2": {},
    "granite": {},
    "cohere": {},
}
REFUSED = {
    "falcon": {"num_kv_heads": 4},
    "bloom": {},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "stablelm": {},
    "qwen3_next": HEADS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mamba": {"state_size": 8},
}


def build(kind: str, options: dict):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(COMMON | options)), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # initial values are so small that attention would hardly matter
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.mark.parametrize("kind", PASSING)
def test_passes(kind):
    shapes = hook_model(build(kind, PASSING[kind]))
    assert sorted(shapes) == list(range(len(shapes)))
    assert len(shapes) == PASSING[kind].get("num_hidden_layers", 2)


@pytest.mark.parametrize("kind", REFUSED)
def test_refuses_by_name(kind):
    model = build(kind, REFUSED[kind])
    with pytest.raises(ConfigError, match=f"{type(model).__name__} cannot be served.*such as Llama"):
        hook_model(model)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("llama", LayerShape(2, 8, 8)), ("gpt2", LayerShape(4, 8, 8)), ("deepseek_v3", LayerShape(4, 12, 6))],
)
def test_reads_the_shapes_off_the_model(kind, shape):
    assert set(hook_model(build(kind, PASSING[kind])).values()) == {shape}


class LeakyLlama(LlamaForCausalLM):
    """Mixes neighbouring tokens outside attention, as no packed row may."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits + output.logits.mean(dim=1, keepdim=True)
        return output


def test_a_model_that_mixes_tokens_elsewhere_is_refused_with_its_error():
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match=r"LeakyLlama cannot be served.*relative error"):
        hook_model(LeakyLlama(LlamaConfig(**COMMON)).eval())


def test_half_precision_passes_with_its_own_tolerance():
    model = build("llama", HEADS).to(torch.bfloat16)
    assert len(hook_model(model)) == 2
