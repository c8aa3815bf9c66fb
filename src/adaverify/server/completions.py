"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from adaverify.outputs import CompletionDelta, CompletionOutput
from adaverify.server.context import RequestContext, ServerState, json_response
from adaverify.server.logprobs import completion_logprobs
from adaverify.server.prompts import completion_prompts
from adaverify.server.protocol import CompletionRequest
from adaverify.server.responses import Completion, CompletionChoice, CompletionLogprobs
from adaverify.server.streaming import EventStream, unless_disconnected

router = APIRouter()


@router.post("/v1/completions", response_model=Completion)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue one or more prompts, whole or as a stream."""
    state: ServerState = request.app.state.server
    context = state.begin("cmpl", body, completion_prompts)
    if body.stream:
        return EventStream(stream_chunks(context))
    outputs = await unless_disconnected(request.receive, context.generation.collect())
    return json_response(
        Completion(
            **_head(context),
            choices=[_choice(context, output.index, output, offset=0) for output in outputs],
            usage=context.generation.usage(),
        )
    )


async def stream_chunks(context: RequestContext) -> AsyncGenerator[str, None]:
    """One chunk a delta, then the usage if asked for."""
    offsets = [0] * context.generation.num_choices
    async with aclosing(context.generation.deltas()) as deltas:
        async for index, delta in deltas:
            choice = _choice(context, index, delta, offsets[index])
            if choice.logprobs is not None:
                offsets[index] += sum(len(token) for token in choice.logprobs.tokens)
            yield Completion(**_head(context), choices=[choice], **context.usage_so_far()).model_dump_json(
                exclude_unset=True
            )
    if context.include_usage:
        yield Completion(**_head(context), choices=[], usage=context.generation.usage()).model_dump_json(
            exclude_unset=True
        )


def _head(context: RequestContext) -> dict[str, Any]:
    return {"id": context.id, "object": "text_completion", "created": context.created, "model": context.model}


def _choice(
    context: RequestContext, index: int, output: CompletionDelta | CompletionOutput, offset: int
) -> CompletionChoice:
    logprobs: CompletionLogprobs | None = None
    if output.logprobs is not None:
        logprobs = completion_logprobs(context.tokenizer, output.logprobs, offset)
    return CompletionChoice(
        index=index,
        text=output.text,
        logprobs=logprobs,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )
