"""Measures everything that a comparison still lacks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

from adaverify.errors import ConfigError
from adaverify.lab.bench.counters import scrape, spent
from adaverify.lab.bench.drive import drive
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.measure import figures
from adaverify.lab.bench.plan import Cell, blocks
from adaverify.lab.bench.processor import ProcessorTime
from adaverify.lab.bench.server import Server
from adaverify.lab.bench.servers import Servers, command_of
from adaverify.lab.bench.settings import Settings
from adaverify.lab.bench.store import Store

# Few at once: the estimator of an arm that learns sees more rounds, and the server still meets a batch.
_WARM_UP_USERS = 4


@dataclass(frozen=True)
class Hooks:
    """Who is told what happens; everything may be left out.

    Attributes
    ----------
    say : callable
        A line on what is being done.
    asked : callable
        How many requests follow.
    answered : callable
        One of them is done.
    measured : callable
        A measurement, as it was kept.
    """

    say: Callable[[str], None] = lambda text: None
    asked: Callable[[int], None] = lambda count: None
    answered: Callable[[], None] = lambda: None
    measured: Callable[[dict[str, Any]], None] = lambda cell: None


@dataclass(frozen=True)
class Starting:
    """How servers are started.

    Attributes
    ----------
    logs : Path
        Folder of what they write.
    flags : tuple of str
        Of servers of ours, besides those in the settings.
    patience : float
        Seconds until a server must answer.
    headers : dict
        Of all requests.
    """

    logs: Path
    flags: tuple[str, ...] = ()
    patience: float = 600.0
    headers: dict[str, str] | None = None


def run(settings: Settings, store: Store, starting: Starting, hooks: Hooks | None = None) -> None:
    """Measure what is missing, and keep each measurement as soon as it is made.

    Raises
    ------
    ConfigError
        A server did not start, ended, or refuses what it is asked.
    """
    hooks = hooks or Hooks()
    todo = store.missing(blocks(settings))
    if not todo:
        return
    starting.logs.mkdir(parents=True, exist_ok=True)
    with Servers(_servers(settings, starting), settings.alone, _announcer(hooks), _warm_up(settings, hooks)) as servers:
        for group in todo:
            store.drop(group)
            for position, cell in enumerate(group):
                hooks.say(f"pass {cell.pass_number + 1}, {cell.workload.name}, {cell.load.label}: {cell.arm.name}")
                with servers.serving(cell.arm) as server:
                    measured = measure(settings, cell, server, hooks)
                store.add(cell, position, measured)
                hooks.measured(store.cells[-1])


def measure(settings: Settings, cell: Cell, server: Server, hooks: Hooks) -> dict[str, Any]:
    """One measurement: the client's figures, the server's own counts, and whose processor time it was."""
    assert server.endpoint is not None
    count = settings.num_requests(cell.load)
    questions = cell.workload.slice(settings.seed, settings.first_question(cell.pass_number, cell.load), count)
    hooks.asked(count)
    started = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    counted, processor, clock = scrape(server.endpoint), ProcessorTime.now(server.group), perf_counter()
    traffic = drive(
        server.endpoint, questions, cell.load, settings.asking, settings.seed + cell.pass_number, hooks.answered
    )
    shares = ProcessorTime.now(server.group).shares_since(processor, perf_counter() - clock)
    return {
        "started": started,
        "server_version": server.endpoint.version,
        "load_average": os.getloadavg()[0],
        "num_prompts": count,
        **figures(traffic, settings.percentiles),
        **spent(counted, scrape(server.endpoint)),
        **shares,
    }


def _servers(settings: Settings, starting: Starting) -> list[Server]:
    flags = (*settings.serve_flags, *starting.flags)
    return [
        Server(
            arm,
            command_of(arm, settings.target, flags),
            starting.logs / f"{arm.name}.log",
            starting.patience,
            starting.headers or {},
        )
        for arm in settings.arms
    ]


def _announcer(hooks: Hooks) -> Callable[[Server], None]:
    return lambda server: hooks.say(f"starting {server.arm.name}")


def _warm_up(settings: Settings, hooks: Hooks) -> Callable[[Server], None]:
    """The requests after a start, the same for all arms; the first place where a server's refusal is seen."""

    def warm_up(server: Server) -> None:
        assert server.endpoint is not None
        if not settings.num_warmups:
            return
        hooks.say(f"warming up {server.arm.name}")
        hooks.asked(settings.num_warmups)
        # A share for each workload, from the first questions of its stream, which no measurement asks.
        for number, workload in enumerate(settings.workloads):
            count = len(range(number, settings.num_warmups, len(settings.workloads)))
            users = Load(max_concurrency=max(1, min(_WARM_UP_USERS, count)))
            asking = replace(settings.asking, ignore_eos=False)
            questions = workload.slice(settings.seed, 0, count)
            traffic = drive(server.endpoint, questions, users, asking, settings.seed, hooks.answered)
            failed = [answer.error for answer in traffic.answers if answer.error]
            if failed:
                raise ConfigError(
                    f"arm {server.arm.name} failed {len(failed)} of {count} requests of its warm-up: {failed[0]}"
                )

    return warm_up
