"""Runs the application on a socket, and brings it down without losing a request."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from adaverify.errors import ConfigError, EngineDeadError
from adaverify.server.context import ServerState

logger = logging.getLogger("uvicorn.error")

FLUSH_SECONDS = 5
"""How long finished answers may take to reach slow clients after the engine is done."""

KEEP_ALIVE_SECONDS = 65
"""Longer than clients keep idle connections (5 to 60 s): who closes first must not be a race."""


def bind(host: str, port: int) -> socket.socket:
    """Take the port before the models are loaded, so that a taken one is known at once.

    Raises
    ------
    ConfigError
        The address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port} ({error}); choose another --host or --port") from error
    return listener


def run_server(app: FastAPI, listener: socket.socket, grace: float, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then drain; returns when all is done.

    The first signal refuses new work (503) while the sockets stay open and gives what runs ``grace``
    seconds; a second one does not wait for them.

    Parameters
    ----------
    app : FastAPI
        From :func:`~adaverify.server.app.create_app`.
    listener : socket.socket
        Bound, not yet listening.
    grace : float
        Seconds.
    on_ready : callable
        Called once requests are accepted.

    Raises
    ------
    EngineDeadError
        The engine did not start.
    """
    server = DrainingServer(server_config(app), app.state.server, grace, on_ready)
    asyncio.run(server.serve(sockets=[listener]))
    if not server.started:
        raise EngineDeadError("the server could not start; the log above says why")


def server_config(app: FastAPI) -> uvicorn.Config:
    """Configure uvicorn: quiet, patient with idle connections, short with what is left after draining."""
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains the engine before it closes its sockets."""

    def __init__(self, config: uvicorn.Config, state: ServerState, grace: float, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._state = state
        self._grace = grace
        self._on_ready = on_ready
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening and say so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; uvicorn's own way would close the sockets first and exit with the signal."""
        if self._state.draining or not self.started:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._state.draining = True
        logger.warning(
            "Shutting down: no new requests; those that run have %g s. A second signal stops at once.", self._grace
        )
        self._drain = asyncio.create_task(self._drain_engine())

    async def _drain_engine(self) -> None:
        try:
            await self._state.engine.shutdown(self._grace)
        finally:
            self.should_exit = True
