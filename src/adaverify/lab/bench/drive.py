"""Puts a load on a server: users that wait for their answers, or arrivals at given times."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from time import perf_counter

import httpx

from adaverify.lab.bench.client import Answer, Reply, body, read, send
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.settings import Asking
from adaverify.lab.bench.workload import Question

OnDone = Callable[[], None]
Ask = Callable[[int], Awaitable[None]]


@dataclass(frozen=True)
class Endpoint:
    """Where a server is, what it calls its model and its version, and the headers that it wants."""

    url: str
    model: str
    headers: dict[str, str]
    version: str | None = None


@dataclass(frozen=True)
class Traffic:
    """All answers of one measurement.

    Attributes
    ----------
    answers : tuple of Answer
    began : float
        Seconds, as are the other times.
    loaded_until : float
        When the load first fell: the first user found nothing left to ask, or the last request arrived.
    ended : float
    """

    answers: tuple[Answer, ...]
    began: float
    loaded_until: float
    ended: float


def drive(
    endpoint: Endpoint,
    questions: Sequence[Question],
    load: Load,
    asking: Asking,
    seed: int,
    on_done: OnDone = lambda: None,
) -> Traffic:
    """Ask all questions under a load and wait for the answers.

    Parameters
    ----------
    endpoint : Endpoint
    questions : sequence of Question
        At least as many as there are users.
    load : Load
    asking : Asking
    seed : int
        Of the arrival times.
    on_done : callable
        Called after each answer.
    """
    return asyncio.run(_drive(endpoint, questions, load, asking, seed, on_done))


async def _drive(
    endpoint: Endpoint, questions: Sequence[Question], load: Load, asking: Asking, seed: int, on_done: OnDone
) -> Traffic:
    # Made before the clock starts: the client shares the machine with the server.
    bodies = [body(question, endpoint.model, asking) for question in questions]
    replies: list[Reply] = []
    async with _client(endpoint, asking) as client:

        async def ask(number: int) -> None:
            replies.append(await send(client, endpoint.url + asking.endpoint, bodies[number], questions[number]))
            on_done()

        began = perf_counter()
        if load.is_closed:
            loaded_until = await _closed(ask, len(questions), load.max_concurrency or 1)
        else:
            loaded_until = await _open(ask, len(questions), load, seed, began)
        ended = perf_counter()
    return Traffic(tuple(read(reply, asking) for reply in replies), began, loaded_until, ended)


async def _closed(ask: Ask, count: int, users: int) -> float:
    """Every user asks, waits, asks again; returns when the first one found nothing left to ask."""
    numbers = iter(range(count))
    idle: list[float] = []

    async def user() -> None:
        for number in numbers:
            await ask(number)
        idle.append(perf_counter())

    await asyncio.gather(*(user() for _ in range(users)))
    return min(idle)


async def _open(ask: Ask, count: int, load: Load, seed: int, began: float) -> float:
    """Requests start at their times, or when a seat is free if there is a cap; returns when the last one arrived."""
    seats: AbstractAsyncContextManager[None] = (
        contextlib.nullcontext() if load.max_concurrency is None else asyncio.Semaphore(load.max_concurrency)
    )

    async def arrive(number: int) -> None:
        async with seats:
            await ask(number)

    running = []
    for number, at in zip(range(count), load.arrivals(seed), strict=False):
        await asyncio.sleep(max(0.0, began + at - perf_counter()))
        running.append(asyncio.create_task(arrive(number)))
    arrived = perf_counter()
    await asyncio.gather(*running)
    return arrived


@contextlib.asynccontextmanager
async def _client(endpoint: Endpoint, asking: Asking) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **endpoint.headers}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    # A proxy of the environment is not what is to be measured.
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=asking.timeout, trust_env=False) as client:
        yield client
