"""Prompts of requests to token ids, the chat template included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2

from adaverify.errors import InvalidRequestError
from adaverify.server.protocol import ChatCompletionRequest, ChatMessage, CompletionRequest
from adaverify.server.unsupported import refuse_unsupported

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def completion_prompts(request: CompletionRequest, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of every prompt of a text completion; special tokens are added as the tokenizer does.

    Raises
    ------
    InvalidRequestError
        There is no prompt, or one is empty or no valid Unicode.
    """
    prompt: Any = request.prompt
    one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
    prompts = [prompt] if one else prompt
    token_ids = [_encode(tokenizer, text, "prompt") if isinstance(text, str) else list(text) for text in prompts]
    if not token_ids or not all(token_ids):
        raise InvalidRequestError("prompt is empty; send at least one token", param="prompt")
    return token_ids


def chat_prompt(request: ChatCompletionRequest, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a conversation, laid out by the tokenizer's chat template.

    Raises
    ------
    InvalidRequestError
        The tokenizer has no chat template, the template refuses the conversation, a content part is not text, or
        ``chat_template_kwargs`` carries what the server refuses elsewhere.
    """
    if not tokenizer.chat_template:
        raise InvalidRequestError(
            "this model's tokenizer has no chat template; use /v1/completions, or serve an instruction-tuned model",
            param="messages",
        )
    messages = [_plain_message(index, message) for index, message in enumerate(request.messages)]
    extra = request.chat_template_kwargs or {}
    # A template of the client's own would be a program that runs here, on the event loop.
    refuse_unsupported(extra)
    options = {
        "add_generation_prompt": request.add_generation_prompt and not request.continue_final_message,
        "continue_final_message": request.continue_final_message,
        **extra,
    }
    try:
        text = str(tokenizer.apply_chat_template(messages, **options, tokenize=False))
    except (jinja2.TemplateError, ValueError, TypeError) as error:
        raise InvalidRequestError(f"the chat template refuses these messages: {error}", param="messages") from error
    # The template writes its own special tokens.
    token_ids = _encode(tokenizer, text, "messages", add_special_tokens=False)
    if not token_ids:
        raise InvalidRequestError("messages make an empty prompt", param="messages")
    return token_ids


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, param: str, **options: Any) -> list[int]:
    """Token ids of a text; JSON can carry half a surrogate pair, which tokenizers cannot read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{param} is not valid Unicode: {error}", param=param) from error
    return list(tokenizer(text, **options).input_ids)


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
