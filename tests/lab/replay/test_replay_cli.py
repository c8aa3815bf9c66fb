from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from adaverify.cli.replay import replay
from adaverify.errors import AdaverifyError, ConfigError
from adaverify.policy.cost import CostCurve, CostTable
from lab import synthetic

app = typer.Typer()
app.command()(replay)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two drafters, one of which drafts 2 tokens."""
    folder = tmp_path_factory.mktemp("traces")
    synthetic.write_trace(folder, num_steps=60)
    small = synthetic.run_info(run="other", drafter="smaller-draft", num_speculative_tokens=2, costs=None)
    return synthetic.write_trace(folder, small, num_steps=60)


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("costs") / "flat.json"
    file.write_text(json.dumps(CostTable(verify=CostCurve((1,), (10.0,))).to_dict()))
    return file


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, AdaverifyError):
        raise result.exception
    return result


def test_a_table_for_each_drafter_and_load_marks_the_best(folder: Path, costs: Path) -> None:
    result = run(folder, "--costs", costs, "--concurrency", 2, "--concurrency", 8)
    assert result.exit_code == 0
    titles = [line for line in result.stdout.splitlines() if " at once" in line]
    assert [title.split(":")[1].split()[0] for title in titles] == ["2", "8", "2", "8"]
    assert titles[-1].startswith("tiny-draft (eagle3, K = 4) for tiny: 8 at once")
    # verification is free: the most drafts are the fastest
    assert "fixed:4 *" in result.stdout
    assert "fixed:2 *" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def test_json_holds_rates_windows_and_refits(folder: Path, costs: Path) -> None:
    result = run(folder, "--costs", costs, "--concurrency", 8, "--policy", "estimator:paper", "--json", "--rounds", 960)
    second, first = json.loads(result.stdout)
    assert (first["drafter"], second["drafter"]) == ("tiny-draft", "smaller-draft")
    assert first["costs_from"] == str(costs)
    (comparison,) = first["comparisons"]
    (row,) = comparison["policies"]
    assert row["policy"] == comparison["best"] == "estimator:paper"
    assert (row["rounds"], sum(window["rounds"] for window in row["windows"])) == (960, 960)
    assert [refit["step"] for refit in row["refits"]] == [0, 100]
    assert 0 < row["relative_to_clairvoyant"] <= 1


def test_the_help_names_every_estimator() -> None:
    from adaverify.lab.replay.policies import ESTIMATORS

    text = "".join(CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--help"]).stdout.split())
    assert all(f"estimator:{mode}" in text for mode in ESTIMATORS)


def test_one_dataset_alone(folder: Path, costs: Path) -> None:
    _, first = json.loads(run(folder, "--costs", costs, "--concurrency", 2, "--dataset", "chat", "--json").stdout)
    assert first["datasets"] == ["chat"]
    assert first["comparisons"][0]["policies"][0]["rounds"] == 240
    with pytest.raises(ConfigError, match="dataset law was not recorded"):
        run(folder, "--costs", costs, "--dataset", "law")


def test_a_batch_that_drains_is_said_to(folder: Path, costs: Path) -> None:
    # 24 requests of 20 rounds over 20 seats: the last 4 leave 16 seats empty
    result = run(folder, "--costs", costs, "--concurrency", 20, "--policy", "fixed:1")
    assert "20 at once (12.0 on average: the batch drains)" in " ".join(result.stdout.split())


def test_a_drafter_without_a_table_asks_for_one(folder: Path) -> None:
    with pytest.raises(ConfigError, match="run other holds no cost table"):
        run(folder, "--concurrency", 2)
