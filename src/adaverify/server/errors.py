"""Every error as OpenAI's error body, with the status code that tells a client what to do about it."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from adaverify.errors import (
    AdaverifyError,
    InvalidRequestError,
    QueueFullError,
    ShuttingDownError,
)

logger = logging.getLogger("adaverify.server")

CLIENT_CLOSED_REQUEST = 499
RETRY_AFTER_SECONDS: dict[type[AdaverifyError], int] = {QueueFullError: 1, ShuttingDownError: 10}


class UnknownModelError(InvalidRequestError):
    """The request names a model that is not served (HTTP 404)."""


class WrongApiKeyError(AdaverifyError):
    """The bearer token is missing or wrong (HTTP 401)."""


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, Any]]:
    """Status code and body of an error.

    Parameters
    ----------
    error : Exception
        One of ours, or anything else (then the message stays on the server).

    Returns
    -------
    status : int
    body : dict
    """
    match error:
        case UnknownModelError():
            return 404, error_body(str(error), "invalid_request_error", error.param, "model_not_found")
        case InvalidRequestError():
            return 400, error_body(str(error), "invalid_request_error", error.param)
        case WrongApiKeyError():
            return 401, error_body(str(error), "invalid_request_error", code="invalid_api_key")
        case QueueFullError():
            return 503, error_body(str(error), "service_unavailable", code="queue_full")
        case ShuttingDownError():
            return 503, error_body(str(error), "service_unavailable", code="shutting_down")
        case AdaverifyError():
            return 500, error_body(str(error), "server_error")
    return 500, error_body("internal server error; see the server's log", "server_error")


def error_response(error: Exception) -> JSONResponse:
    """Answer with an error."""
    status, body = describe(error)
    wait = RETRY_AFTER_SECONDS.get(type(error)) if isinstance(error, AdaverifyError) else None
    return JSONResponse(body, status, headers=None if wait is None else {"Retry-After": str(wait)})


def explain_validation(error: RequestValidationError) -> tuple[str, str | None]:
    """One line for a body that does not fit the protocol, and the name of its first bad field."""
    parts, names = [], []
    for item in error.errors():
        if item["type"] == "json_invalid":
            return f"the body is not valid JSON: {item.get('ctx', {}).get('error', item['msg'])}", None
        name = ".".join(str(part) for part in item["loc"][1:]) or "body"
        names.append(name.split(".")[0])
        parts.append(f"{name}: {item['msg']}")
    return "; ".join(parts), names[0]


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of ``app`` in OpenAI's shape."""

    @app.exception_handler(AdaverifyError)
    async def on_adaverify_error(_: Request, error: AdaverifyError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def on_bad_body(_: Request, error: RequestValidationError) -> Response:
        message, param = explain_validation(error)
        return error_response(InvalidRequestError(message, param))

    @app.exception_handler(HTTPException)
    async def on_http_error(_: Request, error: HTTPException) -> Response:
        return JSONResponse(
            error_body(str(error.detail), "invalid_request_error"), error.status_code, headers=error.headers
        )

    @app.exception_handler(ClientDisconnect)
    async def on_disconnect(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def on_bug(_: Request, error: Exception) -> Response:
        return error_response(error)
