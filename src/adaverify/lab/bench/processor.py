"""Whose processor time a measurement was: the server's, the client's, or somebody else's."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GROUP, _USER, _SYSTEM = 2, 11, 12
_IDLE, _IOWAIT, _NUM_TIMES = 3, 4, 8


@dataclass(frozen=True)
class ProcessorTime:
    """Seconds since some start, summed over cores.

    Attributes
    ----------
    machine, server : float, optional
        None where the system does not tell (``/proc`` of Linux), or no server was started here.
    client : float
    """

    machine: float | None
    server: float | None
    client: float

    @classmethod
    def now(cls, group: int | None) -> ProcessorTime:
        """As it stands; ``group`` is the server's process group."""
        return cls(_machine(), None if group is None else _group(group), time.process_time())

    def shares_since(self, before: ProcessorTime, seconds: float) -> dict[str, float | None]:
        """``client_cpu_share``, ``server_cpu_share`` and ``other_cpu_share`` of all cores over ``seconds``."""
        whole = seconds * (os.cpu_count() or 1)

        def share(now: float | None, then: float | None) -> float | None:
            return None if now is None or then is None else (now - then) / whole

        machine, server = share(self.machine, before.machine), share(self.server, before.server)
        client = (self.client - before.client) / whole
        # Ticks are coarse: a quiet machine comes out a little below nothing.
        other = None if machine is None or server is None else max(0.0, machine - server - client)
        return {"client_cpu_share": client, "server_cpu_share": server, "other_cpu_share": other}


def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _machine() -> float | None:
    try:
        times = [int(value) for value in (_PROC / "stat").read_text().split("\n", 1)[0].split()[1 : 1 + _NUM_TIMES]]
    except (OSError, ValueError):
        return None
    return sum(value for i, value in enumerate(times) if i not in (_IDLE, _IOWAIT)) / _ticks()


def _group(group: int) -> float | None:
    """Processor time of all living processes of a process group."""
    found = None
    for stat in _PROC.glob("[0-9]*/stat"):
        try:
            # The name, in brackets, may hold anything.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[_GROUP]) == group:
            found = (found or 0.0) + (int(fields[_USER]) + int(fields[_SYSTEM])) / _ticks()
    return found
