"""What the endpoints share: the server's state, and what is known about one request."""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Response
from pydantic import BaseModel

from adaverify.server.errors import UnknownModelError, WrongApiKeyError
from adaverify.server.generation import Generation
from adaverify.server.metrics import ServerMetrics
from adaverify.server.protocol import GenerationRequest, StreamOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from adaverify.engine.async_engine import AsyncEngine

Body = TypeVar("Body", bound=GenerationRequest)


@dataclass
class RequestContext:
    """One generation request: its head, its options and its running completions."""

    id: str
    created: int
    model: str
    tokenizer: PreTrainedTokenizerBase
    stream_options: StreamOptions
    generation: Generation

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options.include_usage)

    def usage_so_far(self) -> dict[str, Any]:
        """Give the ``usage`` field of a chunk, if chunks are to have one."""
        return {"usage": self.generation.usage()} if self.stream_options.continuous_usage_stats else {}


class ServerState:
    """Everything the endpoints know.

    Parameters
    ----------
    engine : AsyncEngine
    model_names : list of str
        Names the model is served under; the first is the one in metrics.
    api_key : str, optional
        Bearer token that ``/v1`` asks for.

    Attributes
    ----------
    draining : bool
        Whether the server is going down; the engine then refuses new work.
    """

    def __init__(self, engine: AsyncEngine, model_names: list[str], api_key: str | None) -> None:
        self.engine = engine
        self.model_names = model_names
        self.metrics = ServerMetrics(engine, model_names[0])
        self.created = int(time.time())
        self.draining = False
        self._api_key = api_key

    def begin(
        self, prefix: str, body: Body, prompts: Callable[[Body, PreTrainedTokenizerBase], list[list[int]]]
    ) -> RequestContext:
        """Validate a request and set up its completions; nothing runs yet.

        Raises
        ------
        InvalidRequestError
        """
        model = self.model_names[0] if body.model is None else body.model
        self.check_model(model)
        params = body.sampling_params()
        request_id = f"{prefix}-{uuid.uuid4().hex}"
        tokenizer = self.engine.tokenizer
        return RequestContext(
            id=request_id,
            created=int(time.time()),
            model=model,
            tokenizer=tokenizer,
            stream_options=body.stream_options or StreamOptions(),
            generation=Generation(
                self.engine, self.metrics, prompts(body, tokenizer), params, request_id, body.dataset
            ),
        )

    def check_model(self, model: str) -> None:
        """Refuse a model that is not served here.

        Raises
        ------
        UnknownModelError
            Names the models that are.
        """
        if model not in self.model_names:
            served = ", ".join(repr(name) for name in self.model_names)
            raise UnknownModelError(f"the model {model!r} is not served here; this server has {served}", param="model")

    def check_key(self, authorization: str | None) -> None:
        """Compare an ``Authorization`` header with the API key.

        Raises
        ------
        WrongApiKeyError
            There is a key, and the header does not carry it.
        """
        if self._api_key is None:
            return
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode(), self._api_key.encode()):
            raise WrongApiKeyError("missing or wrong API key; send it as 'Authorization: Bearer KEY'")


def json_response(body: BaseModel) -> Response:
    """Send a response body as JSON, without the fields left unset."""
    return Response(body.model_dump_json(exclude_unset=True), media_type="application/json")
