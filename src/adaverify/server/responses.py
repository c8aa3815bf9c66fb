"""What clients get: the response bodies of the OpenAI API.

Fields left unset are not sent, the ones set to None are sent as null; so nothing but the truly
optional ones has a default.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel


class PromptTokensDetails(BaseModel):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of one HTTP request, all its prompts and completions together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a text completion; parallel lists with one entry a token."""

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]]


class CompletionChoice(BaseModel):
    """One text completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


class Completion(BaseModel):
    """Body of a text completion; the chunks of a stream have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ChatTopLogprob(BaseModel):
    """A token and its log-probability; ``bytes`` are those of the token's text in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatTopLogprob):
    """The emitted token, and the most likely ones at its position."""

    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat completion, one entry a token."""

    content: list[ChatTokenLogprob]


class AssistantMessage(BaseModel):
    """The answer, or what a chunk adds to it (then the role comes once)."""

    role: str | None = None
    content: str


class ChatChoice(BaseModel):
    """One whole answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


class ChatChunkChoice(BaseModel):
    """What a chunk adds to one answer."""

    index: int
    delta: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


class ChatCompletion(BaseModel):
    """Body of a chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatCompletionChunk(BaseModel):
    """One chunk of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """One served model name; ``root`` is the folder or hub name behind it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int


class ModelList(BaseModel):
    """Body of ``GET /v1/models``."""

    object: Literal["list"]
    data: list[ModelCard]
