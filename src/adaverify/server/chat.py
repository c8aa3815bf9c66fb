"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from adaverify.outputs import CompletionDelta, CompletionOutput
from adaverify.server.context import RequestContext, ServerState, json_response
from adaverify.server.logprobs import chat_logprobs
from adaverify.server.prompts import chat_prompt
from adaverify.server.protocol import ChatCompletionRequest
from adaverify.server.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
)
from adaverify.server.streaming import EventStream, unless_disconnected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

router = APIRouter()

ROLE = "assistant"


@router.post("/v1/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    state: ServerState = request.app.state.server
    context = state.begin("chatcmpl", body, _single_prompt)
    if body.stream:
        return EventStream(stream_chunks(context))
    outputs = await unless_disconnected(request.receive, context.generation.collect())
    choices = [
        ChatChoice(message=AssistantMessage(role=ROLE, content=output.text), **_ending(context, output.index, output))
        for output in outputs
    ]
    return json_response(
        ChatCompletion(**_head(context), object="chat.completion", choices=choices, usage=context.generation.usage())
    )


async def stream_chunks(context: RequestContext) -> AsyncGenerator[str, None]:
    """One chunk a delta, then the usage if asked for.

    The role rides on the first chunk: one of its own would look to a benchmark like a token that took no time.
    """
    started = [False] * context.generation.num_choices
    head = {**_head(context), "object": "chat.completion.chunk"}
    async with aclosing(context.generation.deltas()) as deltas:
        async for index, delta in deltas:
            role = {} if started[index] else {"role": ROLE}
            started[index] = True
            choice = ChatChunkChoice(
                delta=AssistantMessage(content=delta.text, **role), **_ending(context, index, delta)
            )
            yield ChatCompletionChunk(**head, choices=[choice], **context.usage_so_far()).model_dump_json(
                exclude_unset=True
            )
    if context.include_usage:
        yield ChatCompletionChunk(**head, choices=[], usage=context.generation.usage()).model_dump_json(
            exclude_unset=True
        )


def _single_prompt(body: ChatCompletionRequest, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    return [chat_prompt(body, tokenizer)]


def _head(context: RequestContext) -> dict[str, Any]:
    return {"id": context.id, "created": context.created, "model": context.model}


def _ending(context: RequestContext, index: int, output: CompletionDelta | CompletionOutput) -> dict[str, Any]:
    """Give the fields that whole answers and chunks share."""
    logprobs = None if output.logprobs is None else chat_logprobs(context.tokenizer, output.logprobs)
    return {
        "index": index,
        "logprobs": logprobs,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
