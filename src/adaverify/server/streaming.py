"""Server-sent events, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adaverify.errors import AdaverifyError
from adaverify.server.errors import describe

logger = logging.getLogger("adaverify.server")

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


async def unless_disconnected(receive: Receive, work: Coroutine[None, None, T]) -> T:
    """Run ``work``, and cancel it as soon as the client disconnects.

    Raises
    ------
    ClientDisconnect
        The client left before the work was done.
    """
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnection(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends JSON texts as server-sent events and ends with ``[DONE]``.

    The status line waits for the first event, so that an error before it is an ordinary error
    response; a later one becomes an event of its own.

    Parameters
    ----------
    events : async generator of str
        One JSON text an event. It is closed when the client disconnects.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream over ASGI."""
        try:
            await unless_disconnected(receive, self._send_all(send))
        except ClientDisconnect:
            logger.debug("the client left a stream")

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            event = await anext(events, None)
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                while event is not None:
                    await _send_body(send, f"data: {event}\n\n".encode())
                    event = await anext(events, None)
            except Exception as error:
                if not isinstance(error, AdaverifyError):
                    logger.exception("a stream broke off")
                await _send_body(send, f"data: {json.dumps(describe(error)[1])}\n\n".encode())
        await _send_body(send, DONE)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
