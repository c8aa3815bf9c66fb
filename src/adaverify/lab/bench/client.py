"""One streamed request: sent, its bytes and their times kept, read when all is over.

While a load runs the client does no more than note what came when: it shares the machine with the server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import httpx

from adaverify.lab.bench.settings import CHAT, Asking
from adaverify.lab.bench.workload import Question

_ERROR_LETTERS = 300


@dataclass(frozen=True)
class Reply:
    """What came back for one question, unread.

    Attributes
    ----------
    question : Question
    sent : float
        Seconds, as are the times of ``pieces``.
    pieces : tuple of (float, bytes)
    status : int
        HTTP status; 0 where the connection failed.
    failure : str
        Why it broke off; empty where it did not.
    """

    question: Question
    sent: float
    pieces: tuple[tuple[float, bytes], ...]
    status: int
    failure: str = ""


@dataclass(frozen=True)
class Answer:
    """One request and what became of it.

    Attributes
    ----------
    dataset : str
    sent : float
        Seconds, as are ``deliveries`` and ``ended``.
    ended : float
    deliveries : tuple of float
        When text came. With speculation one delivery holds several tokens.
    input_tokens, output_tokens : int
        As the server counts them.
    error : str
        Empty where all went well.
    """

    dataset: str
    sent: float
    ended: float
    deliveries: tuple[float, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


def body(question: Question, model: str, asking: Asking) -> bytes:
    """The request's JSON; field names are those that vLLM's own benchmark sends."""
    length = asking.length_of(question)
    if asking.endpoint == CHAT:
        content = {"messages": [{"role": "user", "content": question.text}], "max_completion_tokens": length}
    else:
        content = {"prompt": question.text, "max_tokens": length}
    rest = {
        "model": model,
        "temperature": asking.temperature,
        "top_p": asking.top_p,
        "seed": question.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    ignore = {"ignore_eos": True} if asking.ignore_eos else {}
    return json.dumps(content | rest | ignore | asking.extra_body).encode()


async def send(client: httpx.AsyncClient, url: str, content: bytes, question: Question) -> Reply:
    """Make one request and keep all that comes; a failure is kept, too, never raised."""
    pieces: list[tuple[float, bytes]] = []
    status = 0
    sent = perf_counter()
    try:
        async with client.stream("POST", url, content=content) as response:
            status = response.status_code
            async for piece in response.aiter_raw():
                pieces.append((perf_counter(), piece))
    except httpx.HTTPError as error:
        pieces.append((perf_counter(), b""))
        return Reply(question, sent, tuple(pieces), status, f"{type(error).__name__}: {error}".rstrip(": "))
    return Reply(question, sent, tuple(pieces), status)


def read(reply: Reply, asking: Asking) -> Answer:
    """Read a reply's events.

    A request has failed if the connection broke, the status is not 200, an event is an error, the stream has no
    usage or does not end, or ``ignore_eos`` asked for more tokens than came.
    """
    ended = reply.pieces[-1][0] if reply.pieces else reply.sent
    failed = Answer(reply.question.dataset, reply.sent, ended)
    if reply.failure:
        return _with_error(failed, reply.failure)
    if reply.status != 200:
        text = b"".join(piece for _, piece in reply.pieces).decode(errors="replace")
        return _with_error(failed, f"HTTP {reply.status}: {text}")
    deliveries: list[float] = []
    usage: dict[str, Any] = {}
    finished = False
    for time, data in _events(reply.pieces):
        if data == "[DONE]":
            break
        try:
            event = json.loads(data)
        except json.JSONDecodeError:
            return _with_error(failed, f"an event that is no JSON: {data}")
        if "error" in event:
            return _with_error(failed, f"an error in the stream: {json.dumps(event['error'])}")
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            finished |= choice.get("finish_reason") is not None
            if _text(choice):
                deliveries.append(time)
    output_tokens = int(usage.get("completion_tokens") or 0)
    answer = Answer(
        reply.question.dataset,
        reply.sent,
        ended,
        tuple(deliveries) or (ended,),
        int(usage.get("prompt_tokens") or 0),
        output_tokens,
    )
    if not finished:
        return _with_error(answer, "the stream ended before the answer did")
    if not output_tokens:
        return _with_error(answer, "no token, or no usage: the server must know stream_options.include_usage")
    asked = asking.length_of(reply.question)
    if asking.ignore_eos and output_tokens < asked:
        short = f"{output_tokens} tokens of {asked}: ignore_eos is not obeyed, or the context is full"
        return _with_error(answer, short)
    return answer


def _with_error(answer: Answer, error: str) -> Answer:
    return Answer(**{**vars(answer), "error": " ".join(error.split())[:_ERROR_LETTERS]})


def _text(choice: dict[str, Any]) -> bool:
    """Whether a choice of an event brings text; a role, or an end, alone is no delivery."""
    delta = choice.get("delta") or choice
    return any(delta.get(name) for name in ("content", "text", "reasoning_content", "reasoning"))


def _events(pieces: tuple[tuple[float, bytes], ...]) -> list[tuple[float, str]]:
    """The ``data`` lines and when each was complete."""
    events = []
    rest = b""
    for time, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                events.append((time, line[len(b"data:") :].decode(errors="replace").strip()))
    return events
