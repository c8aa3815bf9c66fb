from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from adaverify.cli.plan import plan
from adaverify.errors import AdaverifyError, ConfigError
from lab import synthetic
from lab.plan.made_up import bench_file

app = typer.Typer()
app.command()(plan)
RATES = {"k0": {"1": 90.0, "4": 300.0}, "k4": {"1": 150.0, "4": 400.0}, "av": {"1": 150.0, "4": 450.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic.write_trace(tmp_path_factory.mktemp("traces"), num_steps=40)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, AdaverifyError):
        raise result.exception
    return result


def test_a_plan_fits_the_terminal_and_ends_in_advice(folder: Path) -> None:
    result = run(folder, "--max-concurrency", "1,8,64", "--rounds", 64, "--costs", "h100-8b-roofline")
    assert result.exit_code == 0, result.exception
    text = " ".join(result.stdout.split())
    assert "tiny-draft (eagle3, K = 4) for tiny: output tokens/s by requests at once" in text
    assert "costs of h100-8b-roofline (data sheet, optimistic): H100 SXM" in text
    assert "AV " in text
    assert "Without AV set " in text
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    (first,) = [line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["k0"]]
    assert len(first) == 4


def test_against_a_bench_its_loads_and_lengths_are_taken(folder: Path, tmp_path: Path) -> None:
    path = bench_file(tmp_path, RATES)
    result = run(folder, "--against", path, "--rounds", 64)
    assert result.exit_code == 0, result.exception
    text = " ".join(result.stdout.split())
    assert "prompts of 30 tokens, answers of 20" in text
    assert "Predicted / measured: mix" in text
    assert any(f"at {right} of the 2 loads where any can be told apart" in text for right in range(3))
    (group,) = json.loads(run(folder, "--against", path, "--rounds", 64, "--json", "--output-len", 40).stdout)
    assert (group["input_len"], group["output_len"]) == (30, 40)
    assert [(one["arm"], one["max_concurrency"]) for one in group["predictions"]][5:7] == [("av", 1), ("k0", 4)]
    assert group["costs"]["kind"] == "measured"
    assert len(group["against"]["predicted_over_measured"]) == 6
    assert set(group["against"]["rankings"]) == {"1", "4"}


def test_workload_needs_a_measurement(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--workload mix names what was measured; give --against"):
        run(folder, "--workload", "mix")
