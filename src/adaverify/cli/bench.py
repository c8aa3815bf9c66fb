"""``adaverify bench``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaverify.cli.bench_options import (
    CONCURRENCIES,
    LATENCIES,
    check_seats,
    json_object,
    latencies,
    memory_flags,
    numbers,
    read_loads,
    serve_flags,
)
from adaverify.cli.bench_progress import interruptible
from adaverify.cli.console import err, out
from adaverify.cli.lab import needs_lab
from adaverify.cli.options import engine_values, with_engine_flags
from adaverify.config import SpeculativeConfig
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.lab.bench.settings import Settings
    from adaverify.lab.bench.summary import Summary

_ARMS, _LOAD, _PROMPTS, _RUN = "Arms", "Load", "Requests", "Run"


@with_engine_flags
def bench(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of results; taken up again where it ended.")],
    target: Annotated[
        str | None, typer.Argument(help="Folder or hub name of the target; SmolLM2-135M-Instruct if omitted.")
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(
            help="k0 (no speculation), k3, k0-7, av, NAME={changes to --speculative-config, or a whole one}, "
            "NAME=http://URL, NAME='COMMAND {port}'; repeat. Every K up to the drafter's and av by default.",
            rich_help_panel=_ARMS,
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Arm that ratios are taken to; the first by default.", rich_help_panel=_ARMS)
    ] = None,
    servers: Annotated[
        str,
        typer.Option(
            help="together: all up, all but one stopped, pairs minutes apart; alone: one at a time, for less memory.",
            rich_help_panel=_ARMS,
        ),
    ] = "together",
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="JSONL of prompts, as FILE or FILE:WEIGHT; repeat to mix.", rich_help_panel=_PROMPTS),
    ] = None,
    by_dataset: Annotated[
        bool, typer.Option("--by-dataset", help="Measure each file alone, not mixed.", rich_help_panel=_PROMPTS)
    ] = False,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Requests of one measurement, at least.", rich_help_panel=_PROMPTS)
    ] = 16,
    prompts_per_seat: Annotated[
        int, typer.Option(min=1, help="The same, for each of --max-concurrency.", rich_help_panel=_PROMPTS)
    ] = 3,
    num_warmups: Annotated[
        int, typer.Option(min=0, help="Uncounted requests after a server's start.", rich_help_panel=_PROMPTS)
    ] = 32,
    output_len: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.", rich_help_panel=_PROMPTS)] = 128,
    range_ratio: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of --output-len by which single answers may be shorter or longer, so that users do not ask in "
            "step.",
            rich_help_panel=_PROMPTS,
        ),
    ] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers of exactly --output-len tokens.", rich_help_panel=_PROMPTS)
    ] = False,
    temperature: Annotated[float, typer.Option(min=0, rich_help_panel=_PROMPTS)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, rich_help_panel=_PROMPTS)] = 0.95,
    endpoint: Annotated[
        str, typer.Option(help="Or /v1/completions, for models without a chat template.", rich_help_panel=_PROMPTS)
    ] = "/v1/chat/completions",
    extra_body: Annotated[
        str | None, typer.Option(help="JSON of further fields of each request.", rich_help_panel=_PROMPTS)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Of servers given by URL.", rich_help_panel=_PROMPTS)
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without a byte that fail a request.", rich_help_panel=_PROMPTS)
    ] = 600.0,
    max_concurrency: Annotated[
        str | None, typer.Option(help=f"Users at once; {CONCURRENCIES} by default.", rich_help_panel=_LOAD)
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Arrivals a second instead, such as 0.5,1,2; --max-concurrency then caps.", rich_help_panel=_LOAD
        ),
    ] = None,
    burstiness: Annotated[
        float, typer.Option(min=0.01, help="Of arrivals: 1 is Poisson, less is burstier.", rich_help_panel=_LOAD)
    ] = 1.0,
    passes: Annotated[int, typer.Option(min=1, help="Times that all is measured.", rich_help_panel=_RUN)] = 3,
    percentile_metrics: Annotated[
        str, typer.Option(help=f"Latencies shown, of {','.join(LATENCIES)}.", rich_help_panel=_RUN)
    ] = "ttft,tpot,itl",
    metric_percentiles: Annotated[str, typer.Option(help="Of latencies.", rich_help_panel=_RUN)] = "50,90,99",
    ready_check_timeout_sec: Annotated[
        float, typer.Option(min=1, help="Seconds that a server may take to start.", rich_help_panel=_RUN)
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.", rich_help_panel=_RUN)] = False,
    engine_flags: dict[str, Any] | None = None,
) -> None:
    """Measure servers against each other over HTTP: fixed depths, adaptive verification, other servers."""
    with needs_lab("bench"):
        import matplotlib  # noqa: F401

        from adaverify.lab.bench.arms import is_foreign, parse_arms
        from adaverify.lab.bench.provenance import provenance
        from adaverify.lab.bench.run import Starting, run
        from adaverify.lab.bench.settings import Asking, Settings
        from adaverify.lab.bench.store import Store
        from adaverify.lab.bench.summarize import summarize
        from adaverify.lab.bench.workload import read_workloads
    flags = engine_flags or {}
    metrics = latencies(percentile_metrics)
    if servers not in ("together", "alone"):
        raise ConfigError(f"--servers {servers!r} is not known; use together or alone")
    workloads = read_workloads(dataset or [], by_dataset)
    loads = read_loads(max_concurrency, request_rate, burstiness)
    base: SpeculativeConfig | None = None
    values: dict[str, Any] = {}
    if not arm or not all(is_foreign(text) for text in arm):
        values = engine_values(target, flags, default_drafts=True)
        base = SpeculativeConfig.parse(values.pop("speculative_config", None))
        check_seats(loads, flags)
    arms = parse_arms(arm or [], base)
    settings = Settings(
        arms=arms,
        workloads=workloads,
        loads=loads,
        asking=Asking(
            endpoint=endpoint,
            output_len=output_len,
            range_ratio=range_ratio,
            ignore_eos=ignore_eos,
            temperature=temperature,
            top_p=top_p,
            extra_body=json_object(extra_body),
            timeout=request_timeout,
        ),
        passes=passes,
        baseline=baseline or arms[0].name,
        num_prompts=num_prompts,
        prompts_per_seat=prompts_per_seat,
        num_warmups=num_warmups,
        percentiles=numbers("--metric-percentiles", metric_percentiles, float, 0, 100),
        seed=flags.get("seed", 0),
        target=values.pop("model", None),
        serve_flags=serve_flags(values),
        alone=servers == "alone",
    )
    store = Store(output, settings, provenance())
    starting = Starting(
        logs=output / "logs",
        flags=memory_flags(settings, values, flags, store),
        patience=ready_check_timeout_sec,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
    )
    interruptible(settings, store, lambda hooks: run(settings, store, starting, hooks))
    summary = summarize(settings, store.cells)
    store.document["summary"] = summary.to_dict()
    store.write()
    _report(summary, settings, output, metrics, as_json)
    if summary.failed:
        raise typer.Exit(1)


def _report(summary: Summary, settings: Settings, output: Path, metrics: Sequence[str], as_json: bool) -> None:
    from adaverify.lab.bench.pictures import write_pictures
    from adaverify.lab.bench.show import tables, warnings

    if as_json:
        typer.echo(json.dumps(summary.to_dict(), indent=2, allow_nan=False))
    else:
        for table in tables(summary, settings, metrics):
            out.print(table)
    figures = write_pictures(summary, output)
    err.print(f"Results and {len(figures)} figures in {output}", soft_wrap=True, markup=False)
    for warning in warnings(summary):
        err.print(f"Note: {warning}.", style="yellow", soft_wrap=True, markup=False)
