"""Prompts of requests to token ids, the chat template included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2

from adaverify.errors import InvalidRequestError
from adaverify.server.protocol import ChatCompletionRequest, ChatMessage, CompletionRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def completion_prompts(request: CompletionRequest, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of every prompt of a text completion; special tokens are added as the tokenizer does.

    Raises
    ------
    InvalidRequestError
        There is no prompt, or one is empty.
    """
    prompt: Any = request.prompt
    one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
    prompts = [prompt] if one else prompt
    token_ids = [tokenizer(text).input_ids if isinstance(text, str) else list(text) for text in prompts]
    if not token_ids or not all(token_ids):
        raise InvalidRequestError("prompt is empty; send at least one token", param="prompt")
    return token_ids


def chat_prompt(request: ChatCompletionRequest, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a conversation, laid out by the tokenizer's chat template.

    Raises
    ------
    InvalidRequestError
        The tokenizer has no chat template, the template refuses the conversation, or a content part
        is not text.
    """
    if not tokenizer.chat_template:
        raise InvalidRequestError(
            "this model's tokenizer has no chat template; use /v1/completions, or serve an instruction-tuned model",
            param="messages",
        )
    messages = [_plain_message(index, message) for index, message in enumerate(request.messages)]
    options = {
        "add_generation_prompt": request.add_generation_prompt and not request.continue_final_message,
        "continue_final_message": request.continue_final_message,
        **(request.chat_template_kwargs or {}),
    }
    try:
        text = tokenizer.apply_chat_template(messages, **options, tokenize=False)
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        raise InvalidRequestError(f"the chat template refuses these messages: {error}", param="messages") from error
    # The template writes its own special tokens.
    token_ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    if not token_ids:
        raise InvalidRequestError("messages make an empty prompt", param="messages")
    return token_ids


def _plain_message(index: int, message: ChatMessage) -> dict[str, Any]:
    """Make a message's content one string, as chat templates want it."""
    content = message.content
    if not isinstance(content, str):
        for part in content:
            if part.type != "text" or part.text is None:
                raise InvalidRequestError(
                    f"messages[{index}].content has a part of type {part.type!r}; only text parts are supported",
                    param="messages",
                )
        content = "\n".join(part.text or "" for part in content)
    return {**(message.model_extra or {}), "role": message.role, "content": content}
