"""Reads the flags of ``adaverify bench``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adaverify.config import EngineConfig
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.lab.bench.load import Load
    from adaverify.lab.bench.settings import Settings
    from adaverify.lab.bench.store import Store

Number = TypeVar("Number", int, float)

CONCURRENCIES = "1,2,4,8,16,32,64"
LATENCIES = ("ttft", "tpot", "itl", "e2el")


def read_loads(max_concurrency: str | None, request_rate: str | None, burstiness: float) -> tuple[Load, ...]:
    """The loads of the sweep: numbers of users, or rates of arrivals.

    Raises
    ------
    ConfigError
        A number is none or out of range, or there are several caps.
    """
    from adaverify.lab.bench.load import Load

    if request_rate is None:
        users = numbers("--max-concurrency", max_concurrency or CONCURRENCIES, int, 1)
        return tuple(Load(max_concurrency=count) for count in users)
    caps = numbers("--max-concurrency", max_concurrency, int, 1) if max_concurrency else (None,)
    if len(caps) > 1:
        raise ConfigError("--max-concurrency is a cap where --request-rate is given; name one number")
    rates = numbers("--request-rate", request_rate, float, 1e-6)
    return tuple(Load(caps[0], rate, burstiness) for rate in rates)


def check_seats(loads: Sequence[Load], flags: dict[str, Any]) -> None:
    """Refuse more users than seats: the others would only wait, and the load be another than it is called.

    Raises
    ------
    ConfigError
    """
    seats = flags.get("max_num_seqs", EngineConfig.model_fields["max_num_seqs"].default)
    most = max((load.max_concurrency or 0 for load in loads if load.is_closed), default=0)
    if most > seats:
        raise ConfigError(
            f"--max-concurrency {most} is more than the servers' --max-num-seqs {seats}; raise the latter"
        )


def numbers(flag: str, text: str, kind: type[Number], low: float, high: float = 1e9) -> tuple[Number, ...]:
    """Numbers with commas between them, each from ``low`` to ``high``.

    Raises
    ------
    ConfigError
        Names the flag.
    """
    try:
        numbers = tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{flag} {text!r}: give numbers with commas between them ({error})") from error
    if any(not low <= number <= high for number in numbers):
        raise ConfigError(f"{flag} {text!r}: every number must be from {low:g} to {high:g}")
    return numbers


def latencies(text: str) -> list[str]:
    """Names of latencies with commas between them.

    Raises
    ------
    ConfigError
        One is not known.
    """
    names = text.split(",")
    unknown = [name for name in names if name not in LATENCIES]
    if unknown:
        raise ConfigError(f"--percentile-metrics {text!r}: {unknown[0]!r} is not one of {', '.join(LATENCIES)}")
    return names


def json_object(text: str | None) -> dict[str, Any]:
    """The JSON of ``--extra-body``.

    Raises
    ------
    ConfigError
        It is no object.
    """
    try:
        return dict(json.loads(text or "{}"))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--extra-body is no JSON object ({error}): {text!r}") from error


def serve_flags(values: dict[str, Any]) -> tuple[str, ...]:
    """Fields of the engine's configuration as arguments of ``adaverify serve``."""
    found: list[str] = []
    for name, value in values.items():
        option = name.replace("_", "-")
        found += (
            [f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
        )
    return tuple(found)


def memory_flags(settings: Settings, values: dict[str, Any], flags: dict[str, Any], store: Store) -> tuple[str, ...]:
    """The same KV memory for all that are up together; by itself each would take a share of what the others left.

    Raises
    ------
    ConfigError
        It cannot be told from here how much there is.
    """
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
