"""The arms' servers: started, stopped while another is measured, and brought down.

All are up during the whole comparison, and all but one are stopped by a signal (SIGSTOP): what is compared then lies
minutes apart rather than a start and a warm-up, and a stopped process takes no processor time at all, where an idle
one, ours or another's, may poll. Where the memory does not hold all of them, one at a time is started instead.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.server import Server


class Servers:
    """The servers of all arms; a context manager that leaves none behind.

    Parameters
    ----------
    servers : list of Server
    alone : bool
        Run one at a time.
    on_start : callable
        Told of each server before it starts.
    warm_up : callable
        Given each server once it answers.
    """

    def __init__(
        self,
        servers: list[Server],
        alone: bool,
        on_start: Callable[[Server], None],
        warm_up: Callable[[Server], None],
    ) -> None:
        self._servers = {server.arm.name: server for server in servers}
        self._alone = alone
        self._on_start = on_start
        self._warm_up = warm_up

    def __enter__(self) -> Servers:
        if not self._alone:
            try:
                # One after the other, the earlier ones stopped: ours measure their costs as they start.
                for server in self._servers.values():
                    self._start(server)
                    server.pause()
            except BaseException:
                self._stop_all()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_all()

    @contextlib.contextmanager
    def serving(self, arm: Arm) -> Iterator[Server]:
        """The server of ``arm``, running; all others are not."""
        server = self._servers[arm.name]
        if server.endpoint is None:
            self._stop_all()
            self._start(server)
        server.resume()
        try:
            yield server
            server.check()
        finally:
            if not self._alone:
                server.pause()

    def _start(self, server: Server) -> None:
        self._on_start(server)
        server.start()
        self._warm_up(server)
        server.check()

    def _stop_all(self) -> None:
        for server in self._servers.values():
            server.stop()


def our_command(arm: Arm, target: str, flags: tuple[str, ...]) -> list[str]:
    """The command line of a server of ours."""
    command = [sys.executable, "-m", "adaverify", "serve", target, "--host", "127.0.0.1", "--port", "{port}", *flags]
    if arm.speculative is None:
        return [*command, "--no-speculation"]
    return [*command, "--speculative-config", arm.speculative.model_dump_json(exclude_defaults=True)]


def command_of(arm: Arm, target: str | None, flags: tuple[str, ...]) -> list[str] | None:
    """How the server of ``arm`` is started; None for one that runs already."""
    if arm.url is not None:
        return None
    if arm.command is not None:
        return shlex.split(arm.command)
    assert target is not None
    return our_command(arm, target, flags)
