"""Raw log-probabilities of emitted tokens: the target's own, before temperature, penalties and filters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaverify.outputs import PositionLogprobs, TokenLogprob


def position_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[PositionLogprobs]:
    """Log-probability and rank of each emitted token, and the most likely tokens of its position.

    Parameters
    ----------
    logits : Tensor [T, V] float
        Unprocessed logits of the rows that emitted the tokens.
    token_ids : sequence of int, length T
        The emitted tokens.
    num_top : sequence of int, length T
        How many most likely tokens to report; 0 reports none.

    Returns
    -------
    list of PositionLogprobs
        A rank is 1 plus the number of strictly more likely tokens, so tied tokens share it.
    """
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    emitted = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(-1)
    chosen = logprobs.gather(-1, emitted)
    chosen_rank = (logprobs > chosen).sum(dim=-1) + 1
    top, top_ids = logprobs.topk(min(max(num_top), logprobs.shape[-1]), dim=-1)
    top_rank = (top.unsqueeze(-2) > top.unsqueeze(-1)).sum(dim=-1) + 1

    positions = zip(
        token_ids,
        num_top,
        chosen.squeeze(-1).tolist(),
        chosen_rank.tolist(),
        top_ids.tolist(),
        top.tolist(),
        top_rank.tolist(),
        strict=True,
    )
    return [
        PositionLogprobs(
            chosen=TokenLogprob(token, logprob, rank),
            top=[TokenLogprob(*entry) for entry in zip(ids[:count], values[:count], ranks[:count], strict=True)],
        )
        for token, count, logprob, rank, ids, values, ranks in positions
    ]
