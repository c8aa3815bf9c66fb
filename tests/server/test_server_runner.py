"""Going down: a real process, real signals."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.server.serving import events

from adaverify.errors import ConfigError
from adaverify.server.runner import bind


class Served:
    """A server process with a stream under way."""

    def __init__(self, grace: float, pace: float, tokens: int) -> None:
        command = [sys.executable, "-m", "tests.server.serve_fake", str(grace), str(pace)]
        self.process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"
        self.response: httpx.Response | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._stream, args=(tokens,))
        self._thread.start()
        assert self._running.wait(20)

    def _stream(self, tokens: int) -> None:
        body = {"prompt": "Hi", "max_tokens": tokens, "stream": True}
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=60) as response:
            self._running.set()
            response.read()
            self.response = response

    def text(self) -> tuple[str, str]:
        """The streamed text and its finish reason, when it has ended."""
        self._thread.join(30)
        choices = [event["choices"][0] for event in events(self.response)]
        return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]

    def wait_for_health(self, status: int) -> None:
        for _ in range(1000):
            if httpx.get(f"{self.url}/health").status_code == status:
                return
        raise AssertionError(f"/health never said {status}")


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    served = Served(**request.param)
    yield served
    served.process.kill()
    served.process.wait()


@pytest.mark.parametrize("served", [{"grace": 30, "pace": 0.02, "tokens": 100}], indirect=True)
def test_what_runs_is_finished_and_new_work_refused(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)
    served.wait_for_health(503)
    refused = httpx.post(f"{served.url}/v1/completions", json={"prompt": "Hi"})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "10"
    assert refused.json()["error"]["code"] == "shutting_down"
    text, reason = served.text()
    assert (len(text), reason) == (100, "length")
    assert served.process.wait(30) == 0


@pytest.mark.parametrize("served", [{"grace": 0.2, "pace": 0.05, "tokens": 1000}], indirect=True)
def test_grace_has_an_end(served: Served) -> None:
    served.process.send_signal(signal.SIGINT)
    text, reason = served.text()
    assert 0 < len(text) < 1000
    assert reason == "abort"
    assert served.process.wait(30) == 0


def test_a_taken_port_is_told_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind("127.0.0.1", port)


def test_an_unknown_host_is_told() -> None:
    with pytest.raises(ConfigError, match="choose another --host"):
        bind("no-such-host.invalid", 8000)
