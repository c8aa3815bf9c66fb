from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from adaverify.errors import ConfigError
from adaverify.training import hidden
from adaverify.training.answers import Answer
from adaverify.training.hidden import HiddenCache
from adaverify.training.run import load_target

ANSWERS = [Answer(f"q/{i}/0@0", [1, 2, 3 + i % 5], [4 + i % 7] * (1 + i % 6)) for i in range(150)]


def test_states_are_those_of_transformers_and_are_kept(target, tmp_path, monkeypatch):
    loaded = load_target(str(target), "float32", "cpu")
    cache = HiddenCache(tmp_path, loaded, (0, 1))
    monkeypatch.setattr(hidden, "_TOKENS_PER_PASS", 40)
    cache.fill(ANSWERS)
    samples = cache.samples(len(ANSWERS))
    assert [s.id for s in samples] == [a.id for a in ANSWERS]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    for sample, answer in list(zip(samples, ANSWERS, strict=True))[::29]:
        ids = answer.prompt_token_ids + answer.output_token_ids
        assert sample.token_ids.tolist() == ids
        assert sample.loss_mask.tolist() == [False] * 3 + [True] * (len(ids) - 3)
        with torch.no_grad():
            output = model(torch.tensor([ids]), output_hidden_states=True)
        expected = torch.cat(output.hidden_states[:2], dim=-1)[0]
        torch.testing.assert_close(sample.taps.float(), expected, rtol=1e-2, atol=1e-2)
        logits = model.lm_head(model.model.norm(sample.last.float()))
        torch.testing.assert_close(logits, output.logits[0], rtol=5e-2, atol=5e-2)

    def no_pass(*_):
        raise AssertionError("computed again")

    monkeypatch.setattr(HiddenCache, "_run", no_pass)
    HiddenCache(tmp_path, loaded, (0, 1)).fill(ANSWERS)


def test_states_of_another_run_are_refused(target, tmp_path):
    loaded = load_target(str(target), "float32", "cpu")
    HiddenCache(tmp_path, loaded, (0, 1))
    with pytest.raises(ConfigError, match="another run"):
        HiddenCache(tmp_path, loaded, (0, 2))


def test_states_of_other_texts_are_computed_anew(target, tmp_path):
    loaded = load_target(str(target), "float32", "cpu")
    cache = HiddenCache(tmp_path, loaded, (1,))
    cache.fill(ANSWERS)
    others = [Answer(a.id, a.prompt_token_ids, [9] * len(a.output_token_ids)) for a in ANSWERS]
    cache.fill(others)
    assert cache.samples(150)[140].token_ids.tolist() == others[140].prompt_token_ids + others[140].output_token_ids
    # fewer of the same texts need nothing new
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.safetensors")}
    cache.fill(others[:70])
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_target_is_left_without_hooks(target, tmp_path):
    loaded = load_target(str(target), "float32", "cpu")
    HiddenCache(tmp_path, loaded, (0, 1)).fill(ANSWERS[:3])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in loaded.model.modules())
