"""``adaverify replay --scenario``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from adaverify.cli.console import err, out
from adaverify.cli.lab import needs_lab
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.lab.scenarios import Course, Outcome, Scenario

JSON_FORMAT = 1
_NUMBERS_A_LINE = 16


def play_scenarios(names: Sequence[str], first_seed: int, num_seeds: int, as_json: bool, png: Path | None) -> None:
    """Play, and print a table each or everything as JSON."""
    with needs_lab("replay --scenario"):
        from adaverify.lab.scenarios import HEALTHY, LOW, choose

        if png is not None:
            from adaverify.lab.scenarios.figure import draw

    if png is not None and not png.parent.is_dir():
        raise ConfigError(f"cannot write {png}: the folder {png.parent} does not exist")
    seeds = range(first_seed, first_seed + num_seeds)
    outcomes = []
    for scenario in choose(names):
        outcomes.append(_play(scenario, seeds))
        if not as_json:
            _show(outcomes[-1])
    if png is not None:
        try:
            draw(outcomes, png)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot write {png} ({error}); give another file") from error
        err.print(f"figure written to {png}", soft_wrap=True, markup=False)
    if as_json:
        head = {"format": JSON_FORMAT, "recovered_at": HEALTHY, "low_below": LOW}
        typer.echo(json.dumps({**head, "scenarios": [outcome.to_dict() for outcome in outcomes]}, indent=2))


def _play(scenario: Scenario, seeds: Sequence[int]) -> Outcome:
    from adaverify.lab.scenarios import run

    with err.status("") as status:
        return run(scenario, seeds, progress=lambda policy: status.update(f"{scenario.name}: {policy}"))


def _show(outcome: Outcome) -> None:
    scenario = outcome.scenario
    table = Table(title=f"{scenario.name}: {scenario.what}", title_justify="left", box=SIMPLE_HEAD, padding=0)
    table.add_column("\npolicy", no_wrap=True)
    headings = ["of\noracle", "of\nhealthy", "refits to\n98%", "longest\n< 95%"]
    for heading in [*headings, *(f"{phase.name}\nbias  ECE" for phase in scenario.phases)]:
        table.add_column(heading, justify="right", no_wrap=True)
    for course in (outcome.oracle, outcome.offline):
        table.add_row(*(Text(cell) for cell in _cells(outcome, course, ["", ""])))
    for course in outcome.estimators:
        ill = [_spread(outcome.refits_to_recover(course)), _spread(outcome.longest_low(course))]
        table.add_row(*(Text(cell) for cell in _cells(outcome, course, ill)))
    out.print(table)
    healthy = 1e3 * outcome.offline.rate(outcome.measured).mean()
    out.print(Text(f"Share of the healthy rate, {healthy:.0f} tokens/s, in each refit interval, %:"))
    for course in outcome.estimators:
        out.print(Text(_numbers(course.policy, (100 * outcome.shares(course).mean(axis=0)).tolist())))
    out.print()


def _cells(outcome: Outcome, course: Course, ill: Sequence[str]) -> list[str]:
    relative = [course.relative_to(other, outcome.measured).mean() for other in (outcome.oracle, outcome.offline)]
    phases = [course.calibration.of_phase(number) for number in range(len(outcome.scenario.phases))]
    return [course.policy, *(f"{value:.3f}" for value in relative), *ill, *map(_calibration, phases)]


def _spread(counts: Sequence[int | None]) -> str:
    """The median of the seeds, and the lowest and the highest where they differ; ∞ for never."""
    ordered = sorted(counts, key=lambda count: float("inf") if count is None else count)
    words = ["∞" if count is None else str(count) for count in ordered]
    middle = words[len(words) // 2]
    return middle if words[0] == words[-1] else f"{middle} ({words[0]}-{words[-1]})"


def _calibration(phase: dict[str, Any]) -> str:
    if not phase["labels"]:
        return "no labels"
    return f"{phase['bias']:+.3f} {phase['ece']:.3f}".replace("0.", ".")


def _numbers(name: str, values: Sequence[float]) -> str:
    lines = [values[start : start + _NUMBERS_A_LINE] for start in range(0, len(values), _NUMBERS_A_LINE)]
    heads = [name, *[""] * (len(lines) - 1)]
    return "\n".join(
        f"{head:10}" + "".join(f"{value:4.0f}" for value in line) for head, line in zip(heads, lines, strict=True)
    )
