"""The whole way with servers of ours on a tiny checkpoint."""

from __future__ import annotations

import json

import pytest
from tests.support import Pair
from typer.testing import CliRunner

from adaverify.cli import app


@pytest.mark.slow
def test_adaptive_against_fixed_and_none_on_a_tiny_checkpoint(pair: Pair, tmp_path):
    prompts = tmp_path / "words.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"w{i} w{i + 1} w2"}) + "\n" for i in range(20)))
    drafter = {"method": "draft_model", "model": str(pair.drafter), "num_speculative_tokens": 2}
    arguments = ["bench", str(pair.target), "-o", str(tmp_path / "out"), "--dataset", str(prompts)]
    arguments += ["--speculative-config", json.dumps(drafter), "--arm", "k0", "--arm", "k2", "--arm", "av"]
    arguments += ["--max-concurrency", "2", "--num-prompts", "6", "--num-warmups", "4", "--passes", "1"]
    arguments += ["--output-len", "24", "--ignore-eos", "--endpoint", "/v1/completions"]
    arguments += ["--dtype", "float32", "--max-num-seqs", "4", "--kv-cache-memory-bytes", "4000000"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    none, fixed, adaptive = document["cells"]
    assert [cell["arm"] for cell in document["cells"]] == ["k0", "k2", "av"]
    for cell in document["cells"]:
        assert (cell["failed"], cell["total_output_tokens"]) == (0, 6 * 24)
        assert cell["step_seconds"]["target"] > 0
        assert cell["server_cpu_share"] > 0
    assert none["rounds"] is None
    # what is not verified was drafted all the same
    assert fixed["admitted"] == fixed["drafted"]
    assert sum(adaptive["admitted"]) <= sum(adaptive["drafted"])
    # every round gives one token and what it accepts; each request's first token comes with its prompt
    tokens = 6 * 24
    assert fixed["rounds"] + sum(fixed["accepted"]) <= tokens
    assert sum(fixed["accepted"]) > 0
    assert document["settings"]["arms"][1]["speculative_config"]["model"] == "drafter"
    assert str(tmp_path) not in json.dumps(document)
