import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from adaverify.drafters.models import DSparkDraftModel, build_draft_model, read_draft_config
from drafters.models import blocks
from drafters.models.reference import CPU, DRAFT_VOCAB, TAPS, VOCAB, Store, bidirectional, layer_fields

METHODS = {
    "eagle3": {"eagle_aux_hidden_state_layer_ids": list(TAPS), "draft_vocab_size": DRAFT_VOCAB},
    "mtp": {},
    "dflash": blocks.OPTIONS | {"draft_vocab_size": DRAFT_VOCAB},
    "dflash2": blocks.OPTIONS | {"draft_vocab_size": VOCAB, "selector_rank": 4, "selector_top_k": 3},
    "dspark": blocks.OPTIONS | {"draft_vocab_size": DRAFT_VOCAB, "markov_rank": 4, "markov_head_type": "rnn"},
}


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16(tmp_path: Path, target: PreTrainedModel, method: str):
    """Weights are cast, but neither the rotations' frequencies nor the confidence head; a pass stays bfloat16."""
    values = {"speculators_model_type": method, "transformer_layer_config": layer_fields(), **METHODS[method]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    target = copy.deepcopy(target).to(torch.bfloat16)
    config = read_draft_config(tmp_path, target.config)
    model = build_draft_model(config, target, torch.bfloat16, CPU)
    for name, parameter in model.named_parameters():
        expected = torch.float32 if name.startswith("confidence_head.") else torch.bfloat16
        assert parameter.dtype == expected, name
    assert model.rotary_emb.inv_freq.dtype == torch.float32
    store = Store(model, 1, torch.bfloat16)
    batch = store.pack([[1, 2, 3]], [1], first_key=1)
    taps = torch.randn(3, len(config.tap_layer_ids) * 32, dtype=torch.bfloat16)
    with torch.no_grad():
        if method in ("eagle3", "mtp"):
            hidden = model(batch.token_ids, model.project(taps)[None], batch.positions, batch.context)
        else:
            store.write_context(0, model.context(model.project(taps), torch.arange(3)[None]))
            hidden = model(batch.token_ids, batch.positions, bidirectional(batch.context), rows_per_block=3)
        logits = model.head(hidden)
        assert (hidden.dtype, logits.dtype) == (torch.bfloat16, torch.bfloat16)
        assert logits.shape == (1, 3, config.draft_vocab_size)
        if isinstance(model, DSparkDraftModel):
            previous = torch.tensor([1, 2, 3])
            assert model.confidence(hidden[0], previous).dtype == torch.float32
            assert model.markov_bias(previous, hidden[0])[0].dtype == torch.bfloat16
