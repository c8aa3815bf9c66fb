"""What clients may send: the request bodies of the OpenAI API, with vLLM's sampling extensions."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from adaverify.errors import InvalidRequestError
from adaverify.sampling.params import SamplingParams
from adaverify.server.unsupported import refuse_unsupported

SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


class StreamOptions(BaseModel):
    """What a stream reports besides text.

    Attributes
    ----------
    include_usage : bool
        End the stream with a chunk that holds the usage and no choices.
    continuous_usage_stats : bool
        Put the usage so far on every chunk.
    """

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationRequest(BaseModel):
    """The fields that both generation endpoints share; null means the default.

    Unknown fields are kept apart in ``model_extra``: the ones whose effect we cannot give are
    refused, the rest is ignored.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    metadata: dict[str, Any] | None = None

    @property
    def dataset(self) -> str:
        """``metadata.dataset``, which recorded traces keep."""
        return str((self.metadata or {}).get("dataset", ""))

    @property
    def token_limit(self) -> int | None:
        """Most tokens to generate; None is the rest of the context."""
        raise NotImplementedError

    @property
    def num_logprobs(self) -> int | None:
        """Number of most likely tokens to report; None reports no log-probabilities."""
        raise NotImplementedError

    def sampling_params(self) -> SamplingParams:
        """Make the sampling parameters of this request.

        Raises
        ------
        InvalidRequestError
            A value is out of range, or a field asks for something we cannot give.
        """
        refuse_unsupported(self.model_extra or {})
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream=true", param="stream_options")
        given = {name: getattr(self, name) for name in SAMPLING_FIELDS if getattr(self, name) is not None}
        return SamplingParams(**given, max_tokens=self.token_limit, logprobs=self.num_logprobs)


class CompletionRequest(GenerationRequest):
    """Body of ``POST /v1/completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = 16
    logprobs: int | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_clear_message(cls, prompt: Any) -> Any:
        """Name the four accepted forms at once; pydantic would report each member of the union."""
        if not is_prompt(prompt):
            raise PydanticCustomError(
                "prompt", "must be a string, a list of strings, a list of token ids or a list of lists of token ids"
            )
        return prompt

    @property
    def token_limit(self) -> int | None:
        """``max_tokens``, 16 unless given."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """``logprobs``."""
        return self.logprobs


class ContentPart(BaseModel):
    """One part of a message's content; only ``text`` parts are served."""

    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """One message of a conversation; further keys reach the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[ContentPart]


class ChatCompletionRequest(GenerationRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def token_limit(self) -> int | None:
        """``max_completion_tokens``, else the older ``max_tokens``, else the rest of the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def num_logprobs(self) -> int | None:
        """``top_logprobs`` where ``logprobs`` is true.

        Raises
        ------
        InvalidRequestError
            ``top_logprobs`` without ``logprobs``.
        """
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs=true", param="top_logprobs")
        return None


def is_prompt(value: Any) -> bool:
    """Whether ``value`` has one of the four forms of a prompt."""
    if isinstance(value, str):
        return True
    if not isinstance(value, list):
        return False
    return (
        all(isinstance(item, str) for item in value)
        or is_token_ids(value)
        or all(isinstance(item, list) and is_token_ids(item) for item in value)
    )


def is_token_ids(value: list[Any]) -> bool:
    """Whether all items are integers (JSON's true and false are not)."""
    return all(isinstance(item, int) and not isinstance(item, bool) for item in value)
