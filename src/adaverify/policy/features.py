"""What the policy reads from a draft distribution: the log-odds of its most likely token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaverify.slices import row_slices

MAX_LOG_ODDS = 40.0
# Logits looked at together.
_SLICE_ELEMENTS = 1 << 17


def log_odds_of_max(logits: Tensor, temperature: Tensor | None = None) -> Tensor:
    """Log-odds of the largest probability of ``softmax(logits / temperature)``.

    The score belongs to the distribution, not to the token drawn from it, so trimming by it keeps the output
    exact ("Adaptive Verification Without a Confidence Head", vLLM blog, 2026-10-14; vLLM pull request 52228).

    Parameters
    ----------
    logits : Tensor, shape [..., V], floating
        Draft logits; ``-inf`` marks tokens that cannot be drawn.
    temperature : Tensor, shape [...], optional
        Temperature of each row; 0 (greedy) counts as 1, and so does leaving it out.

    Returns
    -------
    Tensor, shape [...], float32
        ``log(q_max / (1 - q_max))`` clamped to +-40; NaN for a row that holds NaN or ``+inf`` or nothing finite.
    """
    flat = logits.reshape(-1, logits.shape[-1])
    divisors = None if temperature is None else temperature.reshape(-1)
    scores = [
        _log_odds_of_max(flat[part], None if divisors is None else divisors[part])
        for part in row_slices(flat, _SLICE_ELEMENTS)
    ]
    return torch.cat(scores).view(logits.shape[:-1]) if scores else logits.new_empty(logits.shape[:-1]).float()


def _log_odds_of_max(logits: Tensor, temperature: Tensor | None) -> Tensor:
    values = logits.float()
    largest, argmax = values.max(dim=-1, keepdim=True)
    # The shift comes before the division: differences of nearby floats are exact, quotients are not.
    shifted = values - largest
    if temperature is not None:
        shifted.div_(torch.where(temperature > 0, temperature, 1.0).unsqueeze(-1))
    # Summing everything but the maximum keeps 1 - q_max accurate where q_max rounds to 1.
    others = shifted.scatter_(-1, argmax, float("-inf")).exp_().sum(dim=-1)
    log_odds = others.log().neg().clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)
    return torch.where(largest.squeeze(-1).isfinite(), log_odds, float("nan"))


class LawDetails(NamedTuple):
    """What a recorded trace says of draft distributions besides their log-odds; all float32, temperature-scaled.

    Attributes
    ----------
    q_drawn : Tensor [...]
        Probability of the token that was drawn.
    entropy : Tensor [...]
        Nats.
    margin : Tensor [...]
        Difference between the two largest log-probabilities; inf where only one token has any.
    """

    q_drawn: Tensor
    entropy: Tensor
    margin: Tensor


def law_details(logits: Tensor, drawn: Tensor, temperature: Tensor | None = None) -> LawDetails:
    """Details of ``softmax(logits / temperature)``, for the lab: ``q_drawn`` may not decide what is verified.

    Parameters
    ----------
    logits : Tensor, shape [..., V], floating
    drawn : Tensor, shape [...], int64
        Column of the token drawn.
    temperature : Tensor, shape [...], optional
        As for :func:`log_odds_of_max`.
    """
    log_q = logits.float()
    largest = log_q.max(dim=-1, keepdim=True).values
    log_q = log_q - largest
    if temperature is not None:
        log_q.div_(torch.where(temperature > 0, temperature, 1.0).unsqueeze(-1))
    q = log_q.exp()
    mass = q.sum(dim=-1)
    # sum of q log q over what has mass: 0 times -inf must stay 0
    weighted = (q * log_q.clamp(min=torch.finfo(torch.float32).min)).sum(dim=-1)
    second = log_q.topk(2, dim=-1).values[..., 1]
    return LawDetails(q.gather(-1, drawn.unsqueeze(-1)).squeeze(-1) / mass, mass.log() - weighted / mass, -second)
