"""``adaverify bench``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adaverify.cli.console import err, out
from adaverify.cli.lab import needs_lab
from adaverify.cli.options import engine_values, with_engine_flags
from adaverify.config import EngineConfig, SpeculativeConfig
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.lab.bench.load import Load
    from adaverify.lab.bench.run import Hooks
    from adaverify.lab.bench.settings import Settings
    from adaverify.lab.bench.store import Store
    from adaverify.lab.bench.summary import Summary

Number = TypeVar("Number", int, float)

_ARMS, _LOAD, _PROMPTS, _RUN = "Arms", "Load", "Requests", "Run"
_CONCURRENCIES = "1,2,4,8,16,32,64"
_METRICS = ("ttft", "tpot", "itl", "e2el")


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
        str | None, typer.Option(help=f"Users at once; {_CONCURRENCIES} by default.", rich_help_panel=_LOAD)
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
        str, typer.Option(help=f"Latencies shown, of {','.join(_METRICS)}.", rich_help_panel=_RUN)
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
        from adaverify.lab.bench.summary import summarize
        from adaverify.lab.bench.workload import read_workloads
    flags = engine_flags or {}
    metrics = _metrics(percentile_metrics)
    if servers not in ("together", "alone"):
        raise ConfigError(f"--servers {servers!r} is not known; use together or alone")
    workloads = read_workloads(dataset or [], by_dataset)
    loads = _loads(max_concurrency, request_rate, burstiness)
    base, values = None, {}
    if not arm or not all(is_foreign(text) for text in arm):
        values = engine_values(target, flags, default_drafts=True)
        base = SpeculativeConfig.parse(values.pop("speculative_config", None))
        _check_seats(loads, flags)
    arms = parse_arms(arm or [], base)
    settings = Settings(
        arms=arms,
        workloads=workloads,
        loads=loads,
        asking=Asking(
            endpoint=endpoint,
            output_len=output_len,
            ignore_eos=ignore_eos,
            temperature=temperature,
            top_p=top_p,
            extra_body=_json_object(extra_body),
            timeout=request_timeout,
        ),
        passes=passes,
        baseline=baseline or arms[0].name,
        num_prompts=num_prompts,
        prompts_per_seat=prompts_per_seat,
        num_warmups=num_warmups,
        percentiles=_numbers("--metric-percentiles", metric_percentiles, float, 0, 100),
        seed=flags.get("seed", 0),
        target=values.pop("model", None),
        serve_flags=_serve_flags(values),
        alone=servers == "alone",
    )
    store = Store(output, settings, provenance())
    starting = Starting(
        logs=output / "logs",
        flags=_memory_flags(settings, values, flags, store),
        patience=ready_check_timeout_sec,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
    )
    _interruptible(settings, store, lambda hooks: run(settings, store, starting, hooks))
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


def _interruptible(settings: Settings, store: Store, body: Callable[[Hooks], None]) -> None:
    """Run with progress shown; an interrupt, or a request to end, takes the servers down and says how to go on."""
    # SIGTERM would otherwise end us and leave the servers, stopped, with their memory.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        # Drawn once a second: the display shares the machine with what is measured.
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=err,
            refresh_per_second=1,
            transient=True,
        ) as progress:
            body(_hooks(progress, settings, store))
    except KeyboardInterrupt:
        err.print("Interrupted; the same command goes on from here.", style="yellow")
        raise typer.Exit(128 + signal.SIGINT) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _hooks(progress: Progress, settings: Settings, store: Store) -> Hooks:
    from adaverify.lab.bench.plan import blocks
    from adaverify.lab.bench.run import Hooks

    groups = blocks(settings)
    total, left = (sum(map(len, some)) for some in (groups, store.missing(groups)))
    if left < total:
        err.print(f"{total - left} of {total} measurements are there already")
    everything = progress.add_task("measurements", total=left)
    current = progress.add_task("", total=None)

    def measured(cell: dict[str, Any]) -> None:
        progress.advance(everything)
        progress.console.print(_line(cell), highlight=False, markup=False, soft_wrap=True)

    return Hooks(
        say=lambda text: progress.update(current, description=text),
        asked=lambda count: progress.reset(current, total=count),
        answered=lambda: progress.advance(current),
        measured=measured,
    )


def _line(cell: dict[str, Any]) -> str:
    """One measurement in one line."""
    line = f"pass {cell['pass'] + 1}  {cell['workload']}  {cell['load']}  {cell['arm']}: "
    if cell["failed"]:
        return line + f"{cell['failed']} of {cell['num_prompts']} requests failed; the first: {cell['errors'][0]}"
    line += f"{cell['steady_output_throughput']:.1f} tokens/s"
    if cell["tokens_per_second_per_user"] is not None:
        line += f", {cell['tokens_per_second_per_user']:.1f} a user"
    return line + f", {cell['total_output_tokens']} tokens in {cell['duration']:.1f} s"


def _loads(max_concurrency: str | None, request_rate: str | None, burstiness: float) -> tuple[Load, ...]:
    from adaverify.lab.bench.load import Load

    if request_rate is None:
        users = _numbers("--max-concurrency", max_concurrency or _CONCURRENCIES, int, 1)
        return tuple(Load(max_concurrency=count) for count in users)
    caps = _numbers("--max-concurrency", max_concurrency, int, 1) if max_concurrency else (None,)
    if len(caps) > 1:
        raise ConfigError("--max-concurrency is a cap where --request-rate is given; name one number")
    rates = _numbers("--request-rate", request_rate, float, 1e-6)
    return tuple(Load(caps[0], rate, burstiness) for rate in rates)


def _check_seats(loads: Sequence[Load], flags: dict[str, Any]) -> None:
    """A user without a seat would only wait, and the load be another than it is called."""
    seats = flags.get("max_num_seqs", EngineConfig.model_fields["max_num_seqs"].default)
    most = max((load.max_concurrency or 0 for load in loads if load.is_closed), default=0)
    if most > seats:
        raise ConfigError(
            f"--max-concurrency {most} is more than the servers' --max-num-seqs {seats}; raise the latter"
        )


def _numbers(flag: str, text: str, kind: type[Number], low: float, high: float = float("inf")) -> tuple[Number, ...]:
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{flag} {text!r}: give numbers with commas between them ({error})") from error
    if any(not low <= number <= high for number in numbers):
        raise ConfigError(
            f"{flag} {text!r}: every number must be {low:g} or more" + f", {high:g} or less" * (high < 1e9)
        )
    return numbers


def _metrics(text: str) -> list[str]:
    metrics = text.split(",")
    unknown = [name for name in metrics if name not in _METRICS]
    if unknown:
        raise ConfigError(f"--percentile-metrics {text!r}: {unknown[0]!r} is not one of {', '.join(_METRICS)}")
    return metrics


def _json_object(text: str | None) -> dict[str, Any]:
    try:
        return dict(json.loads(text or "{}"))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--extra-body is no JSON object ({error}): {text!r}") from error


def _serve_flags(values: dict[str, Any]) -> tuple[str, ...]:
    """Fields of the engine's configuration as arguments of ``adaverify serve``."""
    found: list[str] = []
    for name, value in values.items():
        option = name.replace("_", "-")
        found += (
            [f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
        )
    return tuple(found)


def _memory_flags(settings: Settings, values: dict[str, Any], flags: dict[str, Any], store: Store) -> tuple[str, ...]:
    """The same KV memory for all that are up together; by itself each would take a share of what the others left."""
    ours = sum(arm.is_ours for arm in settings.arms)
    if settings.alone or not ours or {"kv_cache_memory_bytes", "num_kv_blocks"} & values.keys():
        return ()
    device = flags.get("device", "auto")
    if device == "cuda" or (device == "auto" and Path("/dev/nvidiactl").exists()):
        raise ConfigError(
            f"{ours} servers share the GPU: say with --kv-cache-memory-bytes what each may take, or use --servers alone"
        )
    memory = store.keep("kv_cache_memory_bytes", _available_memory() // 2 // ours)
    return ("--kv-cache-memory-bytes", str(memory))


def _available_memory() -> int:
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        raise ConfigError(
            "cannot tell how much memory is free here: say with --kv-cache-memory-bytes what each server may take"
        ) from None
