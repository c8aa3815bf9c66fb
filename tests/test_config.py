from __future__ import annotations

import json

import pytest

from adaverify.config import EngineConfig, SpeculativeConfig
from adaverify.errors import ConfigError

GOOD = {"method": "draft_model", "model": "small", "num_speculative_tokens": 6}


def test_json_mappings_and_configs_are_read_alike():
    config = SpeculativeConfig.parse(GOOD)
    assert SpeculativeConfig.parse(json.dumps(GOOD)) == config == SpeculativeConfig.parse(config)
    assert (config.method, config.model, config.num_speculative_tokens) == ("draft_model", "small", 6)
    assert (config.draft_sample_method, config.rejection_sample_method) == ("probabilistic", "standard")
    assert not config.enable_adaptive_verification
    assert config.live_costs
    assert SpeculativeConfig.parse(None) is None


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ('{"method": "draft_model",', ["speculative_config is not valid JSON", '{"method": "draft_model",']),
        ("", ["speculative_config is not valid JSON", "''"]),
        ("[1, 2]", ["speculative_config", "SpeculativeConfig", "[1, 2]"]),
        (GOOD | {"num_spec_tokens": 3}, ["num_spec_tokens", "unknown key"]),
        (GOOD | {"num_speculative_tokens": 0}, ["num_speculative_tokens", "greater than or equal to 1", "given 0"]),
        (GOOD | {"num_speculative_tokens": -2}, ["num_speculative_tokens", "greater than or equal to 1", "given -2"]),
        (GOOD | {"num_speculative_tokens": 17}, ["num_speculative_tokens", "less than or equal to 16", "given 17"]),
        (GOOD | {"num_speculative_tokens": 2.5}, ["num_speculative_tokens", "integer", "given 2.5"]),
        (GOOD | {"method": "eagle9"}, ["method", "'draft_model'", "given 'eagle9'"]),
        (
            GOOD | {"draft_sample_method": "beam"},
            ["draft_sample_method", "'probabilistic' or 'greedy'", "given 'beam'"],
        ),
        (GOOD | {"rejection_sample_method": "lazy"}, ["rejection_sample_method", "'standard'", "given 'lazy'"]),
        ({"method": "draft_model", "num_speculative_tokens": 6}, ["model", "missing"]),
        (GOOD | {"model": 5, "num_speculative_tokens": 99}, ["model", "given 5", ";", "given 99"]),
    ],
)
def test_a_bad_speculative_config_names_the_field_and_the_value(value, parts):
    with pytest.raises(ConfigError) as caught:
        SpeculativeConfig.parse(value)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_depth_of_drafting_adapts_with_verification_unless_it_is_told_not_to():
    on = GOOD | {"enable_adaptive_verification": True}
    assert SpeculativeConfig.parse(on).adapts_draft_depth
    assert not SpeculativeConfig.parse(on | {"adaptive_draft_depth": False}).adapts_draft_depth
    assert not SpeculativeConfig.parse(GOOD).adapts_draft_depth
    with pytest.raises(ConfigError, match=r"adaptive_draft_depth needs enable_adaptive_verification"):
        SpeculativeConfig.parse(GOOD | {"adaptive_draft_depth": True})


@pytest.mark.parametrize("k", [1, 16])
def test_k_from_1_to_16(k):
    assert SpeculativeConfig.parse(GOOD | {"num_speculative_tokens": k}).num_speculative_tokens == k


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (
            {"max_num_seqs": 65, "max_num_batched_tokens": 64},
            ["max_num_batched_tokens (64)", "max_num_seqs (65)", "Raise"],
        ),
        ({"dtype": "int8"}, ["dtype", "'bfloat16'", "given 'int8'"]),
        ({"device": "tpu"}, ["device", "'cpu' or 'cuda'", "given 'tpu'"]),
        ({"seed": -1}, ["seed", "greater than or equal to 0", "given -1"]),
        ({"max_model_len": 1}, ["max_model_len", "greater than or equal to 2"]),
        ({"max_num_seqs": 0}, ["max_num_seqs", "greater than or equal to 1"]),
        ({"block_size": 0}, ["block_size", "greater than or equal to 1"]),
        ({"max_num_sequences": 4}, ["max_num_sequences", "unknown key"]),
        ({"speculative_config": "{"}, ["speculative_config is not valid JSON"]),
        ({"speculative_config": GOOD | {"num_speculative_tokens": 0}}, ["speculative_config: num_speculative_tokens"]),
    ],
)
def test_a_bad_engine_config_names_the_field_and_the_value(values, parts):
    with pytest.raises(ConfigError) as caught:
        EngineConfig.build(model="m", **values)
    for part in parts:
        assert part in str(caught.value)


def test_engine_config_takes_speculation_as_json_and_a_batch_as_large_as_its_tokens():
    config = EngineConfig.build(
        model="m", max_num_seqs=64, max_num_batched_tokens=64, speculative_config=json.dumps(GOOD)
    )
    assert config.speculative_config == SpeculativeConfig.parse(GOOD)
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
