"""What is refused before it reaches the queue."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from adaverify.errors import InvalidRequestError
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.token_rules import validate_token_ids


def check_request(token_ids: list[int], params: SamplingParams, max_model_len: int, vocab_size: int) -> None:
    """Refuse a prompt or parameters that the model cannot serve.

    Raises
    ------
    InvalidRequestError
        Names the field, the value and the limit.
    """
    if not token_ids:
        raise InvalidRequestError("the prompt is empty; send at least one token", param="prompt")
    outside = [token for token in token_ids if not 0 <= token < vocab_size]
    if outside:
        raise InvalidRequestError(
            f"prompt token id {outside[0]} is outside the vocabulary of {vocab_size} tokens", param="prompt"
        )
    if len(token_ids) >= max_model_len:
        raise InvalidRequestError(
            f"the prompt has {len(token_ids)} tokens, but the model takes at most {max_model_len} of prompt and output "
            "together; shorten it",
            param="prompt",
        )
    if len(token_ids) + params.min_tokens > max_model_len:
        raise InvalidRequestError(
            f"min_tokens {params.min_tokens} does not fit: the prompt's {len(token_ids)} tokens leave "
            f"{max_model_len - len(token_ids)} of {max_model_len}",
            param="min_tokens",
        )
    validate_token_ids(params, vocab_size)


def resolve_bad_words(params: SamplingParams, tokenizer: PreTrainedTokenizerBase) -> SamplingParams:
    """Add the token sequences of ``bad_words``, at the start of a text and after a space."""
    if not params.bad_words:
        return params
    sequences = [list(sequence) for sequence in params.bad_words_token_ids]
    for word in params.bad_words:
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            if ids and ids not in sequences:
                sequences.append(ids)
    return replace(params, bad_words=[], bad_words_token_ids=sequences)
