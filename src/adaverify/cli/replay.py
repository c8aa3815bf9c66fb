"""``adaverify replay``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from adaverify.cli.console import err, out
from adaverify.cli.scenarios import play_scenarios
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.lab.replay import Comparison, ReplayResult, Rounds, Traffic
    from adaverify.policy.cost import CostTable


def replay(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders or files that `adaverify record --no-trim` wrote.", show_default=False),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="fixed:K, survival, head, estimator:paper, estimator:robust, oracle, clairvoyant, av, threshold:T, "
            "threshold-trim:T or head-stop:T; may be repeated. All that need no T by default, but av.",
        ),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option("--concurrency", min=1, help="Requests at once; may be repeated. As recorded by default."),
    ] = None,
    costs: Annotated[
        Path | None, typer.Option("--costs", help="JSON of `adaverify profile`; the recorded table by default.")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option("--dataset", help="Only requests of this dataset; may be repeated.")
    ] = None,
    num_rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Play so many rounds, requests again if need be; each once by default."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Shuffles the requests; the first seed of a scenario, 0 by default.")
    ] = None,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario",
            help="In place of traces, traffic with a known law that is hard on an estimator: a name of "
            "docs/scenarios.md, or all; may be repeated.",
        ),
    ] = None,
    num_seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Drawings of each scenario; 3 by default.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Draw the scenarios' rates over time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything, over time too, as JSON.")] = False,
) -> None:
    """Compare policies on recorded traffic, or estimators on hard made-up traffic, without a model."""
    of_traces = {
        "traces": traces, "--policy": policy, "--concurrency": concurrency, "--costs": costs, "--dataset": dataset,
        "--rounds": num_rounds,
    }  # fmt: skip
    of_scenarios = {"--seeds": num_seeds, "--png": png}
    if scenario:
        _refuse(of_traces, "a scenario brings its own traffic and costs")
        play_scenarios(scenario, seed or 0, num_seeds or 3, as_json, png)
        return
    _refuse(of_scenarios, "only a --scenario takes these")
    if not traces:
        raise ConfigError("nothing to replay; give folders that `adaverify record --no-trim` wrote, or --scenario NAME")
    from adaverify.lab.replay import Rounds, Traffic, by_drafter, read_costs, recorded_costs
    from adaverify.lab.replay.policies import left_out
    from adaverify.lab.trace import read_trace

    given = None if costs is None else read_costs(costs)
    groups = []
    for rounds in [Rounds.of(trace) for trace in by_drafter(read_trace(traces))]:
        rounds = rounds.of_datasets(dataset) if dataset else rounds
        table, source = recorded_costs(rounds) if given is None else (given, str(costs))
        if not policy and (missing := left_out(rounds)):
            err.print(f"{rounds.info.drafter}: {missing}", markup=False, highlight=False, soft_wrap=True)
        comparisons = []
        for seats in concurrency or [rounds.recorded_concurrency]:
            done = _compare(rounds, table, Traffic.build(rounds, seats, seed, num_rounds), policy)
            if as_json:
                comparisons.append(done.to_dict())
            else:
                out.print(_table(rounds, done, source))
        groups.append({**described(rounds), "costs": table.to_dict(), "costs_from": source, "seed": seed})
        groups[-1]["comparisons"] = comparisons
    if as_json:
        typer.echo(json.dumps(groups, indent=2))


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise ConfigError(f"{', '.join(given)} cannot be used here: {why}; leave out {', '.join(given)}")


def _compare(rounds: Rounds, costs: CostTable, traffic: Traffic, policies: list[str] | None) -> Comparison:
    from adaverify.lab.replay import compare

    with err.status("") as status:

        def show(policy: str) -> None:
            status.update(f"{traffic.num_seats} requests at once: {policy}")

        return compare(rounds, costs, traffic, policies, progress=show)


def described(rounds: Rounds) -> dict[str, Any]:
    """Which drafter, target and runs: plain values for JSON."""
    info = rounds.info
    return {
        "target": info.target,
        "drafter": info.drafter,
        "method": info.method,
        "num_speculative_tokens": info.num_speculative_tokens,
        "runs": [run.run for run in rounds.runs],
        "datasets": rounds.recorded_datasets,
    }


def _table(rounds: Rounds, comparison: Comparison, source: str) -> Table:
    info, total = rounds.info, comparison.clairvoyant.total
    load = f"{comparison.concurrency} at once"
    if comparison.requests_per_step < 0.95 * comparison.concurrency:
        load += f" ({comparison.requests_per_step:.1f} on average: the batch drains)"
    table = Table(
        title=f"{info.drafter} ({info.method}, K = {info.num_speculative_tokens}) for {info.target}: {load}",
        caption=f"{total.rounds} rounds in {total.num_steps} steps at the costs of {source}; drafted, admitted, "
        "accepted a round; bound: the clairvoyant; *: fastest that a server can run with the target's own law",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("policy", no_wrap=True)
    table.add_column("exact")
    for heading in ("tokens/s", f"of\n{comparison.best_fixed.policy}", "of\nbound", "drafted", "admitted", "accepted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in comparison.results:
        best = result is comparison.best
        table.add_row(*_cells(result, comparison, best), style="bold green" if best else None)
    return table


def _cells(result: ReplayResult, comparison: Comparison, best: bool) -> list[Text]:
    rate, total = result.tokens_per_second, result.total
    exact = ("yes" if result.lossless else "no") if result.attainable else "bound"
    numbers = [
        f"{rate:.1f}",
        f"{rate / comparison.best_fixed.tokens_per_second:.3f}",
        f"{rate / comparison.clairvoyant.tokens_per_second:.3f}",
        *(f"{total.per_round(count):.2f}" for count in ("drafted", "admitted", "accepted")),
    ]
    return [Text(text) for text in (result.policy + (" *" if best else ""), exact, *numbers)]
