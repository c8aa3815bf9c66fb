"""A small OpenAI server without a model, in a thread or as a process: ``python fake_server.py PORT``."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

METRICS = """# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{{engine="0"}} {rounds}
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {rounds}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} 0.0
# TYPE adaverify:draft_tokens_drafted counter
adaverify:draft_tokens_drafted_total{{engine="0",position="0"}} {rounds}
adaverify:draft_tokens_drafted_total{{engine="0",position="1"}} {rounds}
# TYPE adaverify:draft_tokens_admitted counter
adaverify:draft_tokens_admitted_total{{engine="0",position="0"}} {rounds}
adaverify:draft_tokens_admitted_total{{engine="0",position="1"}} 0.0
# TYPE adaverify:step_seconds counter
adaverify:step_seconds_total{{engine="0",part="target"}} {rounds}
"""


@dataclass
class FakeServer:
    """Streams two tokens an event and keeps the bodies that it was sent.

    ``fail`` says of a body how to fail: an HTTP status, ``break`` (the connection), ``error`` (an event), or ``short``.
    """

    has_metrics: bool = True
    key: str | None = None
    fail: Callable[[dict[str, Any]], int | str | None] = lambda body: None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    rounds: int = 0
    keys: set[str] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while request := await reader.readline():
                method, path, _ = request.decode().split()
                headers = {}
                while (line := (await reader.readline()).decode().strip()) != "":
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                self.keys.add(headers.get("authorization", ""))
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                if method == "GET":
                    self._get(path, writer)
                elif not await self._answer(json.loads(content), writer):
                    return
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _get(self, path: str, writer: asyncio.StreamWriter) -> None:
        if self.key is not None and self.key not in self.keys:
            _plain(writer, 401, "{}")
        elif path == "/v1/models":
            _plain(writer, 200, json.dumps({"data": [{"id": "fake"}]}))
        elif path == "/version" and self.has_metrics:
            _plain(writer, 200, json.dumps({"version": "1.2"}))
        elif path == "/metrics" and self.has_metrics:
            _plain(writer, 200, METRICS.format(rounds=float(self.rounds)))
        else:
            _plain(writer, 404, "{}")

    async def _answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        self.bodies.append(body)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._stream(body, self.fail(body), writer)
        finally:
            self.running -= 1

    async def _stream(self, body: dict[str, Any], failure: int | str | None, writer: asyncio.StreamWriter) -> bool:
        if isinstance(failure, int):
            _plain(writer, failure, json.dumps({"error": {"message": "out of luck"}}))
            return True
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        tokens = body.get("max_completion_tokens", body.get("max_tokens"))
        tokens = tokens // 2 if failure == "short" else tokens
        for done in range(0, tokens, 2):
            await asyncio.sleep(0.001)
            self.rounds += 1
            last = done + 2 >= tokens
            delta = {"text": "x"} if "prompt" in body else {"delta": {"content": "x"}}
            _event(writer, {"choices": [{**delta, "finish_reason": "length" if last else None}]})
            if failure == "break":
                return False
            if failure == "error":
                _event(writer, {"error": {"message": "not finite"}})
                break
        _event(writer, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})
        _chunk(writer, b"data: [DONE]\n\n")
        _chunk(writer, b"")
        return True


def _plain(writer: asyncio.StreamWriter, status: int, text: str) -> None:
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())


def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    _chunk(writer, f"data: {json.dumps(event)}\n\n".encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextmanager
def live(server: FakeServer) -> Iterator[str]:
    """URL of a server that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server.serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        listening.close()
        loop.close()


async def _run(port: int) -> None:
    async with await asyncio.start_server(FakeServer().serve, "127.0.0.1", port) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    if sys.argv[1:] == ["broken"]:
        sys.exit("error: out of memory")
    asyncio.run(_run(int(sys.argv[1])))
