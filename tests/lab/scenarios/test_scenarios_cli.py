from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from adaverify.cli.replay import replay
from adaverify.errors import AdaverifyError, ConfigError
from adaverify.lab.replay.policies import ESTIMATORS
from adaverify.lab.scenarios import catalogue

app = typer.Typer()
app.command()(replay)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scenarios, of a few steps."""
    chosen = [catalogue.CATALOGUE[name] for name in ("slow-drift", "burst")]
    drift, burst = (
        replace(s, phases=tuple(replace(p, num_steps=200, seats=min(p.seats, 8)) for p in s.phases)) for s in chosen
    )
    monkeypatch.setattr(catalogue, "_SCENARIOS", (drift, burst))
    monkeypatch.setattr(catalogue, "CATALOGUE", {"slow-drift": drift, "burst": burst})


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, AdaverifyError):
        raise result.exception
    return result


def test_a_table_for_each_scenario_fits_a_terminal(tmp_path: Path) -> None:
    result = run("--scenario", "all", "--seeds", 2, "--png", tmp_path / "rates.png")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith(("slow-drift", "burst"))] == ["slow-drift", "burst"]
    assert all(len(line) <= 80 for line in lines)
    for policy in ("oracle", "offline", *ESTIMATORS):
        assert sum(line.split()[:1] == [policy] for line in lines) == (4 if policy in ESTIMATORS else 2)
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")


def test_json_is_as_documented() -> None:
    values = json.loads(run("--scenario", "burst", "--json", "--seed", 5, "--seeds", 2).stdout)
    assert (values["format"], values["recovered_at"], values["low_below"]) == (1, 0.98, 0.95)
    (scenario,) = values["scenarios"]
    assert scenario["scenario"] == "burst"
    assert scenario["seeds"] == [5, 6]
    assert scenario["phases"][1] == {
        "name": "64 at once", "first_step": 200, "num_steps": 200, "seats": 8, "measured": True
    }  # fmt: skip
    assert [policy["policy"] for policy in scenario["policies"]] == ["oracle", "offline", *ESTIMATORS]
    offline = scenario["policies"][1]
    assert offline["relative_to_healthy"] == [1.0, 1.0]
    assert offline["refits_to_recover"] == offline["longest_below_95"] == [0, 0]
    for policy in scenario["policies"]:
        assert len(policy["tokens_per_second"]) == len(policy["relative_to_oracle"]) == 2
        assert [len(row) for row in policy["share_over_time"]] == [2, 2]
        assert [len(row) for row in policy["rate_over_time"]] == [4, 4]
        assert [told["phase"] for told in policy["calibration"]] == ["2 at once", "64 at once"]
        assert policy["calibration"][1].keys() == {"phase", "labels", "bias", "ece", "ece_of_calibrated"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scenario", "flood"], "no scenario flood; choose from all, slow-drift, burst"),
        (["traces", "--scenario", "burst"], "traces cannot be used here: a scenario brings its own"),
        (["--scenario", "burst", "--policy", "head", "--rounds", "5"], "--policy, --rounds cannot be used here"),
        (["traces", "--png", "rates.png"], "--png cannot be used here: only a --scenario"),
        (["--scenario", "burst", "--png", "nowhere/rates.png"], "the folder nowhere does not exist"),
        ([], "nothing to replay; give folders .* or --scenario NAME"),
    ],
)
def test_what_cannot_be_played_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(*arguments)
