from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from adaverify.drafters.models import DraftModelConfig, MtpDraftModel, build_draft_model
from drafters.models.reference import HIDDEN, VOCAB, Outputs, Store, close, layer_fields, load_ours, save_reference

ROWS = 12
STEPS = 3


def steps_of(model: MtpDraftModel, tokens: Tensor, hidden: Tensor, rows: int) -> list[Tensor]:
    """Logits [rows, V] of each step, every row of a step taking what its own row of the step before gave."""
    logits = []
    fed = model.project(hidden[:rows])[None]
    for step in range(STEPS):
        # training attends within a step, so each has its own store
        store = Store(model, 1)
        batch = store.pack([tokens[step + 1 : step + 1 + rows].tolist()], [1], first_key=1)
        fed = model(batch.token_ids, fed, batch.positions, batch.context)
        logits.append(model.head(fed[0]))
    return logits


@pytest.mark.parametrize("sliding", [False, True])
def test_steps_give_the_references_teacher_forced_logits(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel, sliding: bool
):
    window = {"use_sliding_window": True, "sliding_window": 2, "layer_types": ["sliding_attention"] * 2}
    layers = layer_fields(num_layers=2, **(window if sliding else {}))
    theirs = save_reference(tmp_path, target_folder, "mtp", layers)
    if sliding:
        # the target's layers have the window, the drafter's one has none
        theirs.mtp_layers[0].self_attn.sliding_window = None
        theirs.config.transformer_layer_config.layer_types = ["full_attention"] * 2
    ours = load_ours(tmp_path, target)
    torch.manual_seed(1)
    tokens, hidden = torch.randint(VOCAB, (ROWS,)), torch.randn(ROWS, HIDDEN)
    expected = Outputs(theirs.lm_head)
    with torch.no_grad():
        theirs(tokens[None], hidden[None])
        actual = steps_of(ours, tokens, hidden, ROWS - STEPS - 1)
    assert ours.config.tap_layer_ids == (2,)
    assert len(expected.all) == STEPS
    for logits, reference in zip(actual, expected.all, strict=True):
        close(logits, reference[0])


def test_llama_layers_compute_what_the_decoder_layer_of_transformers_does(target: PreTrainedModel):
    fields = layer_fields("llama", num_layers=2)
    del fields["model_type"]
    layers = LlamaConfig(**fields)
    config = DraftModelConfig("mtp", layers, (2,), HIDDEN, VOCAB)
    torch.manual_seed(0)
    model = build_draft_model(config, target, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.own_parameters().values():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    mine = model.mtp_layers[0]
    layers._attn_implementation = "eager"
    decoder = LlamaDecoderLayer(layers, 0)
    decoder.load_state_dict({name: mine.state_dict()[name] for name in decoder.state_dict()})
    rows = 7
    tokens, hidden = torch.randint(VOCAB, (rows + 1,)), torch.randn(rows, HIDDEN)
    store = Store(model, 1)
    batch = store.pack([tokens[1:].tolist()], [1], first_key=1)

    def norm(which: str, x: Tensor) -> Tensor:
        layer = LlamaRMSNorm(HIDDEN, eps=layers.rms_norm_eps)
        layer.weight = nn.Parameter(getattr(mine, which).weight)
        return layer(x)

    with torch.no_grad():
        fed = model(batch.token_ids, hidden[None], batch.positions, batch.context)
        embedded = target.get_input_embeddings()(tokens[1:])
        both = torch.cat([norm("token_layernorm", embedded), norm("hidden_layernorm", hidden)], dim=-1)
        start = (both @ mine.input_proj.weight.T)[None]
        mask = torch.full((rows, rows), float("-inf")).triu(1)[None, None]
        rotations = LlamaRotaryEmbedding(layers)(start, torch.arange(rows)[None])
        expected = norm("final_layernorm", decoder(start, attention_mask=mask, position_embeddings=rotations))
    close(fed, expected)
    close(model.head(fed), expected @ target.lm_head.weight.T)
