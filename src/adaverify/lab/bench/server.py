"""One arm's server: started, put to rest while another is measured, and brought down."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

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
            It ended, refused the key, or did not answer in time.
        """
        url = self.arm.url or f"http://127.0.0.1:{self._launch()}"
        deadline = time.monotonic() + self._patience
        while True:
            self.check()
            model = self._ask(f"{url}/v1/models", "data", 0, "id")
            if model is not None:
                self.endpoint = Endpoint(url, model, self._headers, self._ask(f"{url}/version", "version"))
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
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
            )
        return port

    def _ask(self, url: str, *path: str | int) -> str | None:
        """What stands at ``path`` in the JSON that ``url`` answers; None while nothing answers."""
        try:
            response = httpx.get(url, headers=self._headers, timeout=10, trust_env=False)
        except httpx.HTTPError:
            return None
        if response.status_code in (401, 403):
            refused = f"refuses {url} with HTTP {response.status_code}"
            raise ConfigError(f"the server of arm {self.arm.name} {refused}; give its --api-key")
        try:
            found: Any = response.json()
            for key in path:
                found = found[key]
        except (ValueError, LookupError, TypeError):
            return None
        return str(found)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _environment() -> dict[str, str]:
    """Ours without the key that ``adaverify serve`` would ask for: nobody else can reach these servers."""
    return {name: value for name, value in os.environ.items() if name != "ADAVERIFY_API_KEY"}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it wrote nothing"
