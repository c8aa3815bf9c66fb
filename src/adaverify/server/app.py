"""The OpenAI-compatible application around an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from adaverify import __version__
from adaverify.server import chat, completions
from adaverify.server.context import ServerState, json_response
from adaverify.server.errors import install_error_handlers
from adaverify.server.progress import report_progress
from adaverify.server.responses import ModelCard, ModelList

if TYPE_CHECKING:
    from adaverify.engine.async_engine import AsyncEngine


def create_app(engine: AsyncEngine, served_model_names: list[str], api_key: str | None = None) -> FastAPI:
    """Build the application; its lifespan starts the engine and shuts it down.

    Parameters
    ----------
    engine : AsyncEngine
        Loaded, not yet started.
    served_model_names : list of str
        Names that requests may use as ``model``, at least one.
    api_key : str, optional
        Bearer token that every ``/v1`` request must carry.

    Returns
    -------
    FastAPI
        With ``app.state.server``, the :class:`~adaverify.server.context.ServerState`.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        progress = asyncio.create_task(report_progress(engine))
        yield
        progress.cancel()
        # Whoever drains has done so by now; what is left belongs to nobody.
        await engine.shutdown(grace=0)

    app = FastAPI(title="adaverify", version=__version__, lifespan=lifespan)
    app.state.server = ServerState(engine, served_model_names, api_key)
    install_error_handlers(app)
    app.include_router(_operations())
    for router in (_models(), completions.router, chat.router):
        app.include_router(router, dependencies=[Depends(_require_key)])
    return app


async def _require_key(request: Request) -> None:
    request.app.state.server.check_key(request.headers.get("authorization"))


def _models() -> APIRouter:
    router = APIRouter()

    def card(state: ServerState, name: str) -> ModelCard:
        return ModelCard(
            id=name,
            object="model",
            created=state.created,
            owned_by="adaverify",
            root=state.engine.config.model,
            max_model_len=state.engine.max_model_len,
        )

    @router.get("/v1/models", response_model=ModelList)
    async def list_models(request: Request) -> Response:
        """List the names the model is served under."""
        state: ServerState = request.app.state.server
        return json_response(ModelList(object="list", data=[card(state, name) for name in state.model_names]))

    @router.get("/v1/models/{name:path}", response_model=ModelCard)
    async def show_model(request: Request, name: str) -> Response:
        """Describe the model under one of its names; names may hold slashes."""
        state: ServerState = request.app.state.server
        state.check_model(name)
        return json_response(card(state, name))

    return router


def _operations() -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health(request: Request) -> Response:
        """Answer 200 while new requests are served, else 503."""
        state: ServerState = request.app.state.server
        return Response(status_code=200 if state.engine.is_healthy and not state.draining else 503)

    @router.get("/version")
    async def show_version() -> JSONResponse:
        """Answer with the version of adaverify."""
        return JSONResponse({"version": __version__})

    @router.get("/metrics")
    async def show_metrics(request: Request) -> Response:
        """Expose the Prometheus metrics."""
        return Response(request.app.state.server.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
