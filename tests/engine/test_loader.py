"""What cannot be served is refused at start, by name and with the remedy."""

from __future__ import annotations

import pytest
import torch
from tests.support import Pair, plain_llm, save_related_model
from transformers import AutoConfig, AutoModelForCausalLM

from adaverify import LLM
from adaverify.engine.loader import resolve_device
from adaverify.errors import ConfigError


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_unknown_folders(pair, tmp_path, role):
    (tmp_path / "empty").mkdir()
    for name, message in [("none", "no such folder"), ("empty", "holds no config.json")]:
        folder = tmp_path / name
        broken = Pair(folder, pair.drafter) if role == "target" else Pair(pair.target, folder)
        with pytest.raises(ConfigError, match=name) as caught:
            broken.llm(tokenizer=str(pair.target))
        assert message in str(caught.value) or "tokenizer" in str(caught.value)


def test_a_folder_without_weights(pair, tmp_path):
    AutoConfig.from_pretrained(pair.target).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=f"target '{tmp_path}' cannot be loaded as a causal language model"):
        plain_llm(tmp_path, tokenizer=str(pair.target))


def test_a_folder_without_tokenizer(pair, tmp_path):
    AutoModelForCausalLM.from_pretrained(pair.target).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"the tokenizer of .* cannot be loaded .*pass --tokenizer"):
        plain_llm(tmp_path)
    assert plain_llm(tmp_path, tokenizer=str(pair.target)).tokenizer.eos_token == "<eos>"


def test_length_and_memory_must_fit(pair):
    with pytest.raises(ConfigError, match="max_model_len 129 is more than the 128 positions"):
        plain_llm(pair.target, max_model_len=129)
    with pytest.raises(ConfigError, match=r"pool of 5 blocks x 4 tokens holds 20 tokens, less than max_model_len 21"):
        plain_llm(pair.target, max_model_len=21, num_kv_blocks=5)
    assert plain_llm(pair.target, num_kv_blocks=5).engine.max_model_len == 20


def test_the_pool_keeps_to_its_memory(pair):
    # 2 layers x 2 heads x (8 + 8) x 4 tokens x 4 bytes
    per_block = 2 * 2 * 16 * 4 * 4
    assert plain_llm(pair.target, kv_cache_memory_bytes=50 * per_block).engine.pool.capacity == 50
    both = pair.llm(kv_cache_memory_bytes=50 * per_block)
    assert both.engine.pool.capacity == 25
    assert both.engine.speculation.drafter.runner.kv.num_blocks == both.engine.runner.kv.num_blocks == 26


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds no CUDA device; use --device cpu"):
        resolve_device("cuda")
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")


def test_both_models_compute_in_the_targets_dtype(pair, tmp_path):
    drafter = save_related_model(tmp_path, pair.drafter, noise=0.0, seed=0)
    AutoModelForCausalLM.from_pretrained(drafter, dtype=torch.bfloat16).save_pretrained(drafter)
    engine = Pair(pair.target, drafter).llm().engine
    assert engine.runner.model.dtype == engine.speculation.drafter.runner.model.dtype == torch.float32
    assert engine.runner.kv.layer(0).slots.dtype == torch.float32


def test_adaptive_verification_measures_its_costs_at_start(pair):
    speculative = {"method": "draft_model", "model": str(pair.drafter), "num_speculative_tokens": 2}
    small = {"dtype": "float32", "max_num_seqs": 2, "max_num_batched_tokens": 8, "max_model_len": 32}
    measured = LLM(str(pair.target), {**speculative, "enable_adaptive_verification": True}, **small).engine
    costs = measured.speculation.costs
    assert (*costs.draft.shape, len(costs.verify)) == (3, 3, 9)
    assert (costs.verify > 0).all()
    assert (costs.verify.diff() >= 0).all()
    assert measured.pool.num_free == measured.pool.capacity
    assert LLM(str(pair.target), speculative, **small).engine.speculation.costs is None
