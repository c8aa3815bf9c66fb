"""Coupled drafting: a draft is a guess at who will win the race by which the target's token is drawn.

Verification is then a comparison: the target's winner is emitted in any case, and a draft is accepted where it is that
token (:func:`~adaverify.sampling.sampler.sample` with ``coupled``). Source: Daliri, Musco and Suresh, "Coupling without
communication and drafter-invariant speculative decoding" (2024).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaverify.sampling.processors import SamplingTensors, filtered_probabilities
from adaverify.sampling.race import MAX_LEAD, race_candidates, run_race

# The drafter races its law to this power. It knows the noise but not the target's law, of which its own is an
# estimate: with that very law it would trust too often in an unlikely token that has come early. Of 1, 1.15, 1.3, 1.5,
# 2 and 3 this one guesses right most often with EAGLE-3 and DSpark, and nearly so with DFlash (benchmarks/coupled.py).
SHARPNESS = 1.5


class CoupledDrafts(NamedTuple):
    """One draft of N requests.

    Attributes
    ----------
    column : Tensor [N] int64
        Of each draft.
    margins : Tensor [N] float32
        How far the draft is ahead of the second best, in nats and at most ``MAX_LEAD``: of ``SHARPNESS log q + g``
        where it was raced, of ``log q`` where it is the most likely token; nan where the law is not finite.
    q : Tensor [N, W] float32, optional
        The drafter's laws; None where all drafts are the most likely tokens.
    """

    column: Tensor
    margins: Tensor
    q: Tensor | None


def race_drafts(logits: Tensor, sampling: SamplingTensors, keys: Tensor, columns: Tensor | None) -> CoupledDrafts:
    """Draw drafts with the noise of their positions; greedy requests take the most likely token.

    Parameters
    ----------
    logits : Tensor [N, W] float32
    sampling : SamplingTensors
    keys : Tensor [N] int64
        See :func:`~adaverify.sampling.noise.position_keys`.
    columns : Tensor [W] or [N, W] int64, optional
        Token of each column: the same for all rows and ascending, or each row's own. None: column v is token v.
    """
    if bool(sampling.greedy.all()):
        return likeliest_drafts(logits, sampling)
    q = filtered_probabilities(logits, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    weights = sharpened(q)
    if columns is None:
        index, margins = run_race(weights, keys, with_leads=True)
    elif columns.ndim == 1:
        winners, margins = run_race(_spread(weights, columns), keys, with_leads=True)
        index = torch.searchsorted(columns, winners).clamp_(max=len(columns) - 1)
    else:
        index, margins = race_candidates(weights, keys, columns)
    assert margins is not None
    if bool(sampling.greedy.any()):
        likeliest = likeliest_drafts(logits, sampling)
        index = torch.where(sampling.greedy, likeliest.column, index)
        margins = torch.where(sampling.greedy, likeliest.margins, margins)
    return CoupledDrafts(index, margins, q)


def sharpened(q: Tensor) -> Tensor:
    """What a drafter with law ``q`` races, not normalised."""
    return q.pow(SHARPNESS)


def likeliest_drafts(logits: Tensor, sampling: SamplingTensors) -> CoupledDrafts:
    """Take the most likely tokens, whatever the noise; parameters as for :func:`race_drafts`."""
    best, index = logits.topk(min(2, logits.shape[-1]), dim=-1)
    best = best.float()
    margins = ((best[:, 0] - best[:, -1]) / sampling.temperature).clamp(max=MAX_LEAD)
    if logits.shape[-1] == 1:
        margins = torch.full_like(margins, MAX_LEAD)
    return CoupledDrafts(index[:, 0], torch.where(best[:, 0].isfinite(), margins, torch.nan), None)


def _spread(q: Tensor, columns: Tensor) -> Tensor:
    """Weights over the whole vocabulary, as far as its last token that has a column."""
    return q.new_zeros(len(q), int(columns[-1]) + 1).index_copy_(-1, columns, q)
