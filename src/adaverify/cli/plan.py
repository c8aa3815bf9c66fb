"""``adaverify plan``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaverify.cli.bench_options import CONCURRENCIES, numbers
from adaverify.cli.console import err, out
from adaverify.cli.lab import needs_lab
from adaverify.cli.replay import described
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.lab.plan import Lengths, Plan, SourcedCosts
    from adaverify.lab.replay import Rounds


def plan(
    traces: Annotated[
        list[Path], typer.Argument(help="Folders or files that `adaverify record --no-trim` wrote.", show_default=False)
    ],
    costs: Annotated[
        str | None,
        typer.Option(
            "--costs",
            help="JSON of `adaverify profile`, or a shipped table: 8xb300-deepseek-v4-pro, h100-8b-roofline, "
            "mi300x-8b-roofline. The table measured at recording by default.",
        ),
    ] = None,
    max_concurrency: Annotated[
        str | None,
        typer.Option(
            help=f"Requests at once, with commas; {CONCURRENCIES} by default, or those that were measured.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option("--dataset", help="Only requests of this dataset; may be repeated.")
    ] = None,
    input_len: Annotated[
        float | None, typer.Option(min=0, help="Mean tokens of a prompt; as recorded, or as measured, by default.")
    ] = None,
    output_len: Annotated[float | None, typer.Option(min=1, help="Mean tokens of an answer; likewise.")] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="bench.json of `adaverify bench`, to compare the predictions with.")
    ] = None,
    workload: Annotated[str | None, typer.Option(help="Of --against, where it holds several.")] = None,
    num_rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="Rounds played at each load; the trace once, 4096 at most and 256 steps at least, by default.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Shuffles the requests.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Predict what fixed depths and adaptive verification bring at each load, and advise."""
    loads = None if max_concurrency is None else numbers("--max-concurrency", max_concurrency, int, 1)
    if workload is not None and against is None:
        raise ConfigError(f"--workload {workload} names what was measured; give --against bench.json, too")
    with needs_lab("plan"):
        from adaverify.lab.plan import Lengths, advice, check, costs_in_trace, load_costs, read_measured
        from adaverify.lab.plan.show import check_table, plan_table
        from adaverify.lab.replay import Rounds, by_drafter
        from adaverify.lab.trace import read_trace

    given = None if costs is None else load_costs(costs)
    groups = []
    for rounds in [Rounds.of(trace) for trace in by_drafter(read_trace(traces))]:
        rounds = rounds.of_datasets(dataset) if dataset else rounds
        measured = None if against is None else read_measured(against, rounds.num_speculative_tokens, workload)
        lengths = Lengths.recorded(rounds) if measured is None else measured.lengths
        made = _make(
            rounds,
            costs_in_trace(rounds) if given is None else given,
            loads or (numbers("", CONCURRENCIES, int, 1) if measured is None else measured.loads),
            lengths.changed(input_len, output_len),
            num_rounds,
            seed,
        )
        checked = None if measured is None else check(made, measured)
        if as_json:
            group = {**described(rounds), **made.to_dict(), "advice": advice(made), "seed": seed}
            groups.append(group if checked is None else {**group, "against": checked.to_dict()})
            continue
        info = rounds.info
        title = f"{info.drafter} ({info.method}, K = {info.num_speculative_tokens}) for {info.target}"
        out.print(plan_table(made, title))
        out.print(advice(made), markup=False)
        if checked is not None:
            out.print()
            out.print(check_table(checked))
    if as_json:
        typer.echo(json.dumps(groups, indent=2))


def _make(
    rounds: Rounds, costs: SourcedCosts, loads: Sequence[int], lengths: Lengths, num_rounds: int | None, seed: int
) -> Plan:
    from adaverify.lab.plan import make_plan

    with err.status("") as status:

        def show(load: int, arm: str) -> None:
            status.update(f"{load} requests at once: {arm}")

        return make_plan(rounds, costs, loads, lengths, num_rounds, seed, progress=show)
