"""The arms' servers: started, stopped while another is measured, and brought down.

All are up during the whole comparison, and all but one are stopped by a signal (SIGSTOP): what is compared then lies
minutes apart rather than a start and a warm-up, and a stopped process takes no processor time at all, where an idle
one, ours or another's, may poll. Where the memory does not hold all of them, one at a time is started instead.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from adaverify.errors import ConfigError
from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.drive import Endpoint

_POLL_SECONDS = 0.25
_STOP_SECONDS = 20.0
_SETTLE_SECONDS = 0.2


class Server:
    """One arm's server.

    Parameters
    ----------
    arm : Arm
    command : list of str, optional
        With ``{port}``; None for a server that runs already.
    log : Path
        Gets what the process writes.
    patience : float
        Seconds until it must be ready.
    headers : dict
        Of every request.
    """

    def __init__(
        self, arm: Arm, command: list[str] | None, log: Path, patience: float, headers: dict[str, str]
    ) -> None:
        self.arm = arm
        self._command = command
        self._log = log
        self._patience = patience
        self._headers = headers
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint: Endpoint | None = None

    @property
    def group(self) -> int | None:
        """Process group; None for a server that was not started here."""
        return None if self._process is None else self._process.pid

    def start(self) -> Endpoint:
        """Start it, if that is ours to do, and wait until it answers.

        Raises
        ------
        ConfigError
            It ended, or did not answer in time.
        """
        url = self.arm.url or f"http://127.0.0.1:{self._launch()}"
        deadline = time.monotonic() + self._patience
        while True:
            self.check()
            model = self._model(url)
            if model is not None:
                self.endpoint = Endpoint(url, model, self._headers)
                return self.endpoint
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"the server of arm {self.arm.name} did not answer {url}/v1/models within {self._patience:g} s; "
                    f"see {self._log}, or raise --ready-check-timeout-sec"
                )
            time.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Raise a ConfigError if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise ConfigError(
                f"the server of arm {self.arm.name} ended with code {self._process.returncode}: "
                f"{_last_line(self._log)} (all of it in {self._log})"
            )

    def pause(self) -> None:
        """Take it off the processor until :meth:`resume`."""
        if self._process is not None:
            # What follows the last token of a step is not to be cut in two: it may be timed.
            time.sleep(_SETTLE_SECONDS)
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it, for good if it does not go by itself."""
        self.endpoint = None
        if self._process is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _launch(self) -> int:
        assert self._command is not None
        port = _free_port()
        command = [word.replace("{port}", str(port)) for word in self._command]
        with self._log.open("ab") as log:
            # A group of its own: an interrupt reaches it through us, and its children are stopped with it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return port

    def _model(self, url: str) -> str | None:
        """Name of the first model served at ``url``; None while nothing answers."""
        try:
            response = httpx.get(f"{url}/v1/models", headers=self._headers, timeout=10, trust_env=False)
            return str(response.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


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


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"
