from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from drafters.models import blocks
from drafters.models.reference import close, layer_fields, load_ours, save_reference


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """Logits with the Markov bias and confidence logits of each training forward."""
    core = pytest.importorskip("speculators.models.dspark.core", reason="the speculators library is the reference")
    calls = []
    compute = core.compute_metrics

    def record(logits: torch.Tensor, targets: torch.Tensor, confidence: torch.Tensor | None, *args: Any, **kwargs: Any):
        calls.append((logits, confidence))
        return compute(logits, targets, confidence, *args, **kwargs)

    monkeypatch.setattr(core, "compute_metrics", record)
    return calls


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("vanilla", {"reduced": True}),
        ("gated", {}),
        ("rnn", {"reduced": True, "confidence_head_with_markov": False}),
        ("rnn", {"sample_from_anchor": False}),
        ("vanilla", {"enable_confidence_head": False}),
        ("vanilla", {"markov_rank": 0, "confidence_head_with_markov": False}),
    ],
)
def test_blocks_give_the_references_logits_and_confidence(
    tmp_path: Path, target_folder: Path, target: PreTrainedModel, captured: list, kind: str, options: dict[str, Any]
):
    options = {"markov_rank": 6, "markov_head_type": kind} | options
    theirs = save_reference(tmp_path, target_folder, "dspark", layer_fields(), **blocks.OPTIONS, **options)
    ours = load_ours(tmp_path, target)
    case = blocks.random_case()
    blocks.theirs(theirs, case)
    expected, confidence = captured[0]
    expected = expected.view(len(blocks.ANCHORS), blocks.BLOCK_SIZE, -1)
    logits, hidden = blocks.ours(ours, case)
    previous = case.previous(options.get("sample_from_anchor", True))
    state = None
    with torch.no_grad():
        for k in range(blocks.BLOCK_SIZE):
            bias, state = ours.markov_bias(previous[:, k], hidden[:, k], state)
            close(logits[:, k] if bias is None else logits[:, k] + bias, expected[:, k])
            own = ours.confidence(hidden[:, k], previous[:, k])
            if confidence is None:
                assert own is None
            else:
                close(own, confidence.view(len(blocks.ANCHORS), -1)[:, k])
    assert (bias is None) == (options["markov_rank"] == 0)
    assert (state is not None) == (kind == "rnn")
