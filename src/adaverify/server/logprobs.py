"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify.outputs import PositionLogprobs, TokenLogprob
from adaverify.server.responses import ChatLogprobs, ChatTokenLogprob, ChatTopLogprob, CompletionLogprobs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot hold (vLLM's value)."""


def completion_logprobs(
    tokenizer: PreTrainedTokenizerBase, positions: Sequence[PositionLogprobs], offset: int
) -> CompletionLogprobs:
    """Parallel lists of a text completion; the first token's text starts at ``offset``."""
    tokens = [_text(tokenizer, position.chosen) for position in positions]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[_finite(position.chosen) for position in positions],
        tokens=tokens,
        top_logprobs=[_top_by_text(tokenizer, position) for position in positions],
    )


def chat_logprobs(tokenizer: PreTrainedTokenizerBase, positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
    """One entry a token of a chat completion."""

    def entry(token: TokenLogprob) -> ChatTopLogprob:
        text = _text(tokenizer, token)
        return ChatTopLogprob(token=text, logprob=_finite(token), bytes=list(text.encode()))

    return ChatLogprobs(
        content=[
            ChatTokenLogprob(
                **entry(position.chosen).model_dump(), top_logprobs=[entry(token) for token in position.top]
            )
            for position in positions
        ]
    )


def _top_by_text(tokenizer: PreTrainedTokenizerBase, position: PositionLogprobs) -> dict[str, float]:
    """Map the most likely tokens and the emitted one; of two with the same text, the likelier stays."""
    by_text: dict[str, float] = {}
    for token in (*position.top, position.chosen):
        by_text.setdefault(_text(tokenizer, token), _finite(token))
    return by_text


def _text(tokenizer: PreTrainedTokenizerBase, token: TokenLogprob) -> str:
    return str(tokenizer.decode([token.token_id]))


def _finite(token: TokenLogprob) -> float:
    return max(token.logprob, LOWEST_LOGPROB)
