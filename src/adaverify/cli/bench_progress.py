"""What ``adaverify bench`` shows while it measures, and how it is interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adaverify.cli.console import err

if TYPE_CHECKING:
    from adaverify.lab.bench.run import Hooks
    from adaverify.lab.bench.settings import Settings
    from adaverify.lab.bench.store import Store


def interruptible(settings: Settings, store: Store, body: Callable[[Hooks], None]) -> None:
    """Run with progress shown; an interrupt, or a request to end, takes the servers down and says how to go on."""
    # SIGTERM would otherwise end us and leave the servers, stopped, with their memory.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        # Drawn once a second: the display shares the machine with what is measured.
        with Progress(
            TextColumn("{task.description}", markup=False),
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
