"""A fake engine, and clients of the server around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.serving import asgi_client, live


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine, anyio_backend: str) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(engine) as client:
        yield client


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with live(engine) as base:
        yield base
