"""Changes of the logits that depend on a request's own tokens; order and meaning are vLLM's.

Row ``j`` of a request predicts the token after ``prompt + output + drafts[:j]`` and is treated as if those drafts had
been decoded one by one: what is penalised or forbidden at a position is the same with and without speculation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from adaverify.errors import InvalidRequestError
from adaverify.sampling.params import SamplingParams

_FORBIDDEN = float("-inf")


def validate_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Check that the token ids named by a request exist.

    Raises
    ------
    InvalidRequestError
        ``logit_bias``, ``allowed_token_ids`` or ``bad_words_token_ids`` names an id outside ``[0, vocab_size)``.
    """
    named: dict[str, Collection[int]] = {
        "logit_bias": params.logit_bias or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "bad_words_token_ids": [token for word in params.bad_words_token_ids for token in word],
    }
    for field, token_ids in named.items():
        unknown = sorted(token for token in token_ids if not 0 <= token < vocab_size)
        if unknown:
            raise InvalidRequestError(
                f"{field} names token ids outside the vocabulary: {unknown[:5]}; use ids from 0 to {vocab_size - 1}",
                param=field,
            )


def has_token_rules(params: SamplingParams, num_output_tokens: int) -> bool:
    """Whether any rule of the request can still change its logits."""
    return (
        params.allowed_token_ids is not None
        or bool(params.bad_words_token_ids)
        or num_output_tokens < params.min_tokens
        or bool(params.logit_bias)
        or _has_penalties(params)
    )


def apply_token_rules(
    logits: Tensor,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    drafts: Sequence[int],
    eos_token_ids: Collection[int],
) -> None:
    """Apply allowed ids, bad words, min_tokens, bias and penalties, in this order, to one request's rows in place.

    Parameters
    ----------
    logits : Tensor [1 + len(drafts), V] float32
        Changed in place; row ``j`` follows ``prompt + output + drafts[:j]``.
    params : SamplingParams
        Token ids within the vocabulary (see :func:`validate_token_ids`).
    prompt, output, drafts : sequence of int
        The request's tokens so far, and the drafts being verified.
    eos_token_ids : collection of int
        Forbidden, with ``stop_token_ids``, before ``min_tokens``.
    """
    if params.allowed_token_ids is not None:
        _forbid_all_but(logits, params.allowed_token_ids)
    if params.bad_words_token_ids:
        _forbid_bad_words(logits, params.bad_words_token_ids, [*output, *drafts], len(output))
    if len(output) < params.min_tokens:
        _forbid_stopping(logits[: params.min_tokens - len(output)], {*eos_token_ids, *params.stop_token_ids})
    if params.logit_bias:
        _add_bias(logits, params.logit_bias)
    if _has_penalties(params):
        _penalise(logits, params, prompt, output, drafts)


def _has_penalties(params: SamplingParams) -> bool:
    return params.presence_penalty != 0 or params.frequency_penalty != 0 or params.repetition_penalty != 1


def _forbid_all_but(logits: Tensor, token_ids: Sequence[int]) -> None:
    allowed = torch.tensor(token_ids, device=logits.device)
    values = logits[:, allowed]
    logits.fill_(_FORBIDDEN)
    logits[:, allowed] = values


def _forbid_bad_words(logits: Tensor, bad_words: Sequence[Sequence[int]], generated: list[int], start: int) -> None:
    """Forbid the last token of a sequence where the others have just been generated; the prompt does not count."""
    rows, columns = [], []
    for row in range(len(logits)):
        length = start + row
        for *prefix, last in bad_words:
            if generated[max(0, length - len(prefix)) : length] == prefix:
                rows.append(row)
                columns.append(last)
    if rows:
        device = logits.device
        logits[torch.tensor(rows, device=device), torch.tensor(columns, device=device)] = _FORBIDDEN


def _forbid_stopping(logits: Tensor, token_ids: Collection[int]) -> None:
    # A stop token that the vocabulary lacks can never be generated.
    stops = [token for token in token_ids if 0 <= token < logits.shape[-1]]
    logits[:, torch.tensor(stops, dtype=torch.int64, device=logits.device)] = _FORBIDDEN


def _add_bias(logits: Tensor, bias: dict[int, float]) -> None:
    token_ids = torch.tensor(list(bias), device=logits.device)
    logits[:, token_ids] += torch.tensor(list(bias.values()), dtype=logits.dtype, device=logits.device)


def _penalise(
    logits: Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], drafts: Sequence[int]
) -> None:
    """Repetition penalty over prompt and output, then frequency and presence over the output (OpenAI's definition)."""
    if params.repetition_penalty == 1:
        prompt = ()
    history = torch.tensor([*prompt, *output, *drafts], dtype=torch.int64)
    tokens, slots = torch.unique(history, return_inverse=True)
    in_prompt, in_output, in_drafts = slots.split((len(prompt), len(output), len(drafts)))

    counts = torch.zeros(len(logits), len(tokens))
    counts[0] = in_output.bincount(minlength=len(tokens))
    counts[torch.arange(1, len(logits)), in_drafts] = 1.0
    counts = counts.cumsum(dim=0)  # row j counts the output and the first j drafts
    seen = counts > 0
    seen[:, in_prompt] = True

    tokens, counts, seen = tokens.to(logits.device), counts.to(logits.device), seen.to(logits.device)
    values = logits[:, tokens]
    repeated = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    values = torch.where(seen, repeated, values)
    logits[:, tokens] = values - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
