from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from tests.support import TRIMMING_COSTS, Pair, random_prompts
from typer.testing import CliRunner

from adaverify import SamplingParams
from adaverify.cli import app
from adaverify.errors import ConfigError
from adaverify.lab.recording import answer, conversations
from adaverify.lab.trace import read_trace
from adaverify.training.prompts import read_source

PARAMS = SamplingParams(temperature=1.0, max_tokens=8, seed=7)


def write_prompts(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def files(tmp_path) -> list[Path]:
    return [
        write_prompts(tmp_path / "maths.jsonl", [{"turns": [f"w{i} w2", "w3"]} for i in range(6)]),
        write_prompts(
            tmp_path / "mixed.jsonl",
            [{"messages": [{"role": "user", "content": "w1"}], "category": name} for name in ("qa", "rag", "qa")],
        ),
    ]


def test_prompts_of_all_files_take_turns_with_parameters_and_seeds(files):
    greedy = SamplingParams(temperature=0.0, max_tokens=8, seed=7)
    work = conversations([read_source(str(file)) for file in files], 2, [PARAMS, greedy])
    assert [one.dataset for one in work] == ["maths", "mixed/qa", "maths", "mixed/rag"]
    # within each dataset, so that neither has all the greedy ones
    assert [one.params.temperature for one in work] == [1.0, 0.0, 0.0, 1.0]
    assert [one.params.seed for one in work] == [7, 8, 9, 10]
    assert work[0].turns == ("w0 w2", "w3")


def test_files_of_one_name_are_refused(files):
    source = read_source(str(files[0]))
    with pytest.raises(ConfigError, match="same name"):
        conversations([source, source], None, [PARAMS])


def test_conversations_are_held_to_their_end(pair: Pair, files):
    engine = pair.llm(k=3).engine
    asked: list[str] = []
    original = engine.add_request

    def add(tokens, params, request_id, dataset=""):
        asked.append(dataset)
        return original(tokens, params, request_id, dataset)

    with mock.patch.object(engine, "add_request", add):
        errors = answer(engine, conversations([read_source(str(file)) for file in files], None, [PARAMS]))
    assert errors == []
    assert asked.count("maths") == 12
    assert (asked.count("mixed/qa"), asked.count("mixed/rag")) == (2, 1)
    assert engine.stats().finished.keys() <= {"length", "stop"}


def test_a_prompt_too_long_costs_itself_alone(pair: Pair, tmp_path):
    long = " ".join(["w1"] * 200)
    source = read_source(str(write_prompts(tmp_path / "p.jsonl", [{"prompt": long}, {"prompt": "w1"}])))
    engine = pair.llm(k=3).engine
    errors = answer(engine, conversations([source], None, [PARAMS]))
    assert len(errors) == 1
    assert "200 tokens" in errors[0]
    assert sum(engine.stats().finished.values()) == 1


@pytest.mark.parametrize("trim", [True, False])
def test_the_command_records_a_trace(pair: Pair, files, tmp_path, trim):
    config = {"method": "draft_model", "model": str(pair.drafter), "num_speculative_tokens": 3}
    config |= {"enable_adaptive_verification": True, "live_costs": False}
    arguments = ["record", *map(str, files), "-o", str(tmp_path / "trace"), "--target", str(pair.target)]
    arguments += [
        "--max-tokens",
        "20",
        "--temperature",
        "1",
        "--temperature",
        "0",
        "--speculative-config",
        json.dumps(config),
    ]
    arguments += ["--max-num-seqs", "8", "--dtype", "float32", *([] if trim else ["--no-trim"])]
    with (
        mock.patch("adaverify.engine.factory.profile_costs", return_value=TRIMMING_COSTS),
        mock.patch("adaverify.engine.profiling.profile_costs", return_value=TRIMMING_COSTS),
    ):
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    trace = read_trace([tmp_path / "trace"])
    assert set(trace.datasets) == {"maths", "mixed/qa", "mixed/rag"}
    assert set(np.unique(trace.drafts.temperature)) == {0.0, 1.0}
    assert trace.drafts.admitted.all() == (not trim)
    assert trace.runs[0].trimmed == trim
    assert trace.runs[0].cost_table == TRIMMING_COSTS
    assert f"{len(trace.drafts)} drafts" in result.output


def test_recording_without_a_drafter_is_refused(pair: Pair, files, tmp_path):
    arguments = ["record", str(files[0]), "-o", str(tmp_path / "trace"), "--target", str(pair.target)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "needs a drafter" in str(result.exception)


def test_random_prompts_have_no_dataset(pair: Pair, tmp_path):
    from adaverify.lab.trace.recorder import Recorder

    llm = pair.llm(k=3)
    recorder = Recorder(llm.engine, tmp_path)
    llm.generate(random_prompts(2, 46), PARAMS)
    recorder.close()
    assert read_trace([tmp_path]).datasets == ("",)
