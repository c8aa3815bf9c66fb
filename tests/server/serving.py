"""The application around a fake engine, in process and on a real socket, and what tests send to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from tests.server.fake_engine import FakeEngine

from adaverify.server.app import create_app
from adaverify.server.runner import DrainingServer, bind, server_config


def asgi_client(engine: FakeEngine, api_key: str | None = None) -> httpx.AsyncClient:
    """A client that talks to the application without a socket."""
    app = create_app(engine, ["fake", "alias"], api_key)
    # An unexpected exception is to be seen as the client sees it.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://server")


@contextmanager
def live(engine: FakeEngine, api_key: str | None = None) -> Iterator[str]:
    """Base URL of a real server around ``engine``."""
    app = create_app(engine, ["fake"], api_key)
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = DrainingServer(server_config(app), app.state.server, 0, ready.set)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    assert ready.wait(20)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


async def complete(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    """Ask for ten tokens."""
    return await client.post("/v1/completions", json={"model": "fake", "prompt": "Hi", "max_tokens": 10, **body})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
