from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from tests.lab.bench.fake_server import FakeServer, live
from tests.lab.bench.support import prompt_file, settings
from typer.testing import CliRunner

from adaverify.cli.bench import bench
from adaverify.errors import ConfigError
from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.provenance import provenance, without_folders
from adaverify.lab.bench.run import Hooks, Starting, run
from adaverify.lab.bench.store import Store

app = typer.Typer()
app.command()(bench)


@pytest.fixture
def fakes() -> Iterator[dict[str, tuple[FakeServer, str]]]:
    one, other = FakeServer(), FakeServer(has_metrics=False)
    with live(one) as url, live(other) as other_url:
        yield {"one": (one, url), "other": (other, other_url)}


@pytest.fixture
def arms(fakes) -> tuple[Arm, ...]:
    return tuple(Arm(name, url=url) for name, (_, url) in fakes.items())


def texts(server: FakeServer) -> list[tuple[str, int]]:
    return sorted((body["messages"][0]["content"], body["seed"]) for body in server.bodies)


def go(tmp_path: Path, chosen, hooks: Hooks | None = None) -> Store:
    store = Store(tmp_path / "out", chosen, provenance())
    run(chosen, store, Starting(tmp_path / "logs"), hooks)
    return store


def test_arms_take_turns_and_meet_the_same_questions(tmp_path, fakes, arms):
    store = go(tmp_path, settings(tmp_path, arms))
    done = [(cell["pass"], cell["load"], cell["arm"]) for cell in store.cells]
    assert done == [
        *((0, "1", "one"), (0, "1", "other"), (0, "3", "other"), (0, "3", "one")),
        *((1, "1", "other"), (1, "1", "one"), (1, "3", "one"), (1, "3", "other")),
    ]
    one, other = (fakes[name][0] for name in fakes)
    # two warm-ups, and 4 and 6 questions in each of two passes
    assert len(one.bodies) == 2 + 2 * (4 + 6)
    assert texts(one) == texts(other)
    assert len({seed for _, seed in texts(one)}) == len(one.bodies)


def test_measurements_hold_what_client_and_server_saw(tmp_path, arms):
    store = go(tmp_path, settings(tmp_path, arms))
    first, second = store.cells[:2]
    assert (first["completed"], first["failed"], first["num_prompts"]) == (4, 0, 4)
    assert first["total_output_tokens"] == 16
    assert (first["rounds"], first["admitted"]) == (8, [8, 0])
    assert (second["rounds"], second["admitted"]) == (None, None)
    assert (first["server_version"], second["server_version"]) == ("1.2", None)
    assert first["steady_output_throughput"] > 0
    assert first["p99_ttft_ms"] >= first["median_ttft_ms"] > 0
    # the server was not started here
    assert first["other_cpu_share"] is None


def test_an_interrupted_comparison_goes_on_where_it_stopped(tmp_path, fakes, arms):
    chosen = settings(tmp_path, arms)

    class StopError(Exception):
        pass

    done = []

    def stop_after_three(cell) -> None:
        done.append(cell)
        if len(done) == 3:
            raise StopError

    with pytest.raises(StopError):
        go(tmp_path, chosen, Hooks(measured=stop_after_three))
    before = json.loads((tmp_path / "out" / "bench.json").read_text())["cells"]
    assert len(before) == 3
    again = []
    store = go(tmp_path, chosen, Hooks(measured=again.append))
    # the first group stays, the half of the second is measured anew
    assert store.cells[:2] == before[:2]
    assert [(cell["load"], cell["arm"]) for cell in again[:2]] == [("3", "other"), ("3", "one")]
    assert len(again) == 6
    assert len(store.cells) == 8
    count = len(fakes["one"][0].bodies)
    go(tmp_path, chosen)
    assert len(fakes["one"][0].bodies) == count


def test_failures_are_counted_and_the_rest_goes_on(tmp_path, fakes, arms):
    chosen = settings(tmp_path, arms)
    bad = chosen.first_question(0, chosen.loads[1])
    fakes["one"][0].fail = lambda body: 500 if body["seed"] == bad else None
    store = go(tmp_path, chosen)
    assert [cell["failed"] for cell in store.cells] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert "out of luck" in store.cells[3]["errors"][0]
    fakes["one"][0].fail = lambda body: None
    assert [cell["failed"] for cell in go(tmp_path, chosen).cells] == [0] * 8


def test_a_refusal_is_seen_in_the_warm_up(tmp_path, fakes, arms):
    fakes["other"][0].fail = lambda body: 422
    with pytest.raises(ConfigError, match="arm other failed 2 of 2 requests of its warm-up: HTTP 422"):
        go(tmp_path, settings(tmp_path, arms))


def test_without_warm_ups_nothing_else_changes(tmp_path, fakes, arms):
    go(tmp_path, replace(settings(tmp_path, arms), num_warmups=0, passes=1))
    assert len(fakes["one"][0].bodies) == 4 + 6


def command(tmp_path: Path, fakes, *more: str) -> list[str]:
    arms = [part for name, (_, url) in fakes.items() for part in ("--arm", f"{name}={url}")]
    rest = ["--max-concurrency", "1,2", "--num-prompts", "3", "--prompts-per-seat", "1", "--num-warmups", "0"]
    rest += ["--output-len", "4", "--passes", "2", "--dataset", str(prompt_file(tmp_path, "maths", 9))]
    return ["-o", str(tmp_path / "out"), *arms, *rest, *more]


def test_the_command_measures_sums_up_and_draws(tmp_path, fakes):
    result = CliRunner().invoke(app, command(tmp_path, fakes, "--api-key", "secret", "--json"))
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert [(point["load"], point["arm"]) for point in summary["points"]] == [
        (load, arm) for load in ("1", "2") for arm in ("one", "other")
    ]
    assert (tmp_path / "out" / "frontier-maths.png").stat().st_size > 1000
    document = (tmp_path / "out" / "bench.json").read_text()
    assert json.loads(document)["summary"] == summary
    assert str(tmp_path) not in document
    assert fakes["one"][0].keys == {"Bearer secret"}

    grown = CliRunner().invoke(app, command(tmp_path, fakes, "--passes", "3"))
    assert grown.exit_code == 0, grown.output
    assert "8 of 12 measurements are there already" in grown.stderr
    assert "maths: output tokens/s" in grown.stdout

    changed = CliRunner().invoke(app, command(tmp_path, fakes, "--output-len", "6"))
    assert isinstance(changed.exception, ConfigError)
    assert "output_len changed" in str(changed.exception)


def test_a_failed_request_makes_the_exit_code_1(tmp_path, fakes):
    fakes["other"][0].fail = lambda body: 503 if body["seed"] == 1 else None
    result = CliRunner().invoke(app, command(tmp_path, fakes))
    assert result.exit_code == 1
    assert "1 of 3 requests failed; the first: HTTP 503" in result.stderr
    assert "Note: 1 requests failed" in result.stderr


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--max-concurrency", "1,x"], "numbers with commas"),
        (["--max-concurrency", "0"], "must be from 1 to"),
        (["--request-rate", "inf", "--max-concurrency", "1"], "must be from"),
        (["--request-rate", "1", "--max-concurrency", "1,2"], "name one number"),
        (["--percentile-metrics", "ttft,speed"], "'speed' is not one of"),
        (["--extra-body", "{"], "no JSON object"),
        (["--servers", "both"], "together or alone"),
        (["--endpoint", "/v1/embeddings"], "not known"),
        (["--baseline", "none"], "one of one, other"),
        (["--arm", "k1", "--speculative-config", "{"], "not valid JSON"),
        (["--arm", "k0", "--max-concurrency", "65"], "--max-num-seqs 64"),
        (["--dataset", "none.jsonl"], "no such file"),
    ],
)
def test_slips_are_told_before_anything_is_asked(tmp_path, fakes, more, told):
    result = CliRunner().invoke(app, [*command(tmp_path, fakes), "nowhere/target", *more])
    assert isinstance(result.exception, ConfigError), result.output
    assert told in str(result.exception)
    assert fakes["one"][0].bodies == []


def test_folders_of_this_machine_are_not_told():
    assert without_folders("--target=/a/b/model") == "--target=model"
    assert without_folders("/a/b/prompts.jsonl:3") == "prompts.jsonl:3"
    for kept in ("http://127.0.0.1:8000/v1/models", "org/model", "./here/prompts.jsonl", "--endpoint=/v1/completions"):
        assert without_folders(kept) == kept
