"""Drawing a token as the winner of an exponential race: the largest ``weight / time``, with the noise of a position.

``argmax weight(v) / E(v)`` is ``argmax log weight(v) + g(v)`` with Gumbel noise ``g = -log E``: a token of the law that
is proportional to the weights. Two laws raced with the same noise often have the same winner, which is what coupled
verification lives on (Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative
decoding", 2024).

No token of a block can beat the block's largest weight divided by its first time. Blocks, and then tokens, that cannot
beat a score already reached are left out before their own times are drawn; the winner is the same as over all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaverify.sampling.noise import BLOCK, first_times, times, times_behind

MAX_LEAD = 40.0
# Blocks whose likeliest tokens are tried first.
_LEADERS = 8
# With fewer blocks of positive weight than this in a row, ruling some out costs more than it saves.
_FEW_BLOCKS = 16
# Weights looked at together: what is gathered from them should stay in the processor's caches.
_SLICE_ELEMENTS = 1 << 22
# Rounding of float32 may not rule a winner out.
_SLACK = 1.0 - 1e-4


class Race(NamedTuple):
    """Winners of N races.

    Attributes
    ----------
    tokens : Tensor [N] int64
        0 where no weight is positive or some are not finite.
    leads : Tensor [N] float32, optional
        Log of the winner's score less that of the runner-up, at most ``MAX_LEAD``; nan where there is no winner. In
        terms of a law q: ``log q + g`` of the best token less that of the second best.
    """

    tokens: Tensor
    leads: Tensor | None = None


def run_race(weights: Tensor, keys: Tensor, with_leads: bool = False) -> Race:
    """Race all tokens of a vocabulary.

    Parameters
    ----------
    weights : Tensor [N, V] float32
        0 or more; column v is token v.
    keys : Tensor [N] int64
        See :func:`~adaverify.sampling.noise.position_keys`.
    with_leads : bool
        Give the leads, too.
    """
    size = max(1, _SLICE_ELEMENTS // weights.shape[-1])
    races = [_race(*rows, with_leads) for rows in zip(torch.split(weights, size), torch.split(keys, size), strict=True)]
    if len(races) == 1:
        return races[0]
    tokens = torch.cat([race.tokens for race in races])
    return Race(tokens, torch.cat([race.leads for race in races if race.leads is not None]) if with_leads else None)


def race_candidates(weights: Tensor, keys: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Race few tokens, given in columns of each row's own.

    Parameters
    ----------
    weights : Tensor [N, W] float32
    keys : Tensor [N] int64
    tokens : Tensor [N, W] int64
        Distinct within a row.

    Returns
    -------
    columns : Tensor [N] int64
        Of the winners.
    leads : Tensor [N] float32
        As in :class:`Race`.
    """
    scores = weights.double() / times(keys.unsqueeze(-1), tokens)
    best, columns = scores.max(dim=-1)
    second = scores.scatter(-1, columns.unsqueeze(-1), 0.0).amax(dim=-1)
    return columns, _lead(best, second)


def _race(weights: Tensor, keys: Tensor, with_leads: bool) -> Race:
    field = _Field(weights, keys)
    rows, blocks = (field.tops > 0).nonzero(as_tuple=True)
    first, first_tokens = first_times(keys[rows], blocks)
    if len(rows) > _FEW_BLOCKS * len(weights):
        reached = _reached(field, rows, blocks, first, first_tokens, with_leads)
        kept = (field.tops[rows, blocks] >= first * reached[rows]).nonzero().squeeze(-1)
        rows, blocks, first, first_tokens = (column[kept] for column in (rows, blocks, first, first_tokens))
        least = (first * reached[rows]).float().unsqueeze(-1)
    else:
        least = first.new_zeros((), dtype=torch.float32)

    tokens, opened = field.open(rows, blocks)
    entry, column = ((opened > 0) & (opened >= least)).nonzero(as_tuple=True)
    rows, tokens = rows[entry], tokens[entry, column]
    arrival = first[entry] + times_behind(keys[rows], tokens, first_tokens[entry])
    scores = opened[entry, column].double() / arrival
    best = _best_of(rows, scores, len(weights))
    beaten = scores < best[rows]
    winners = torch.zeros_like(keys).index_put_((rows[~beaten],), tokens[~beaten])
    if not with_leads:
        return Race(winners)
    return Race(winners, _lead(best, _best_of(rows, torch.where(beaten, scores, 0.0), len(weights))))


class _Field:
    """The runners: weights by block, and the largest of each block, ``tops`` [N, B]."""

    def __init__(self, weights: Tensor, keys: Tensor) -> None:
        vocab = weights.shape[-1]
        self.weights, self.keys, self.vocab = weights, keys, vocab
        self.width = min(BLOCK, vocab)
        tail = vocab % self.width
        self.tops = weights[:, : vocab - tail].view(len(weights), -1, self.width).amax(dim=-1)
        if tail:
            self.tops = torch.cat((self.tops, weights[:, vocab - tail :].amax(dim=-1, keepdim=True)), dim=-1)
        self._windows = weights.unfold(-1, self.width, 1)

    def open(self, rows: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and weights [..., width] of blocks; where the last one is short, weight 0 fills it up."""
        begin = (blocks * self.width).unsqueeze(-1)
        start = begin.clamp(max=self._windows.shape[1] - 1)
        tokens = start + torch.arange(self.width, device=blocks.device)
        return tokens, torch.where(tokens >= begin, self._windows[rows, start.squeeze(-1)], 0.0)


def _reached(
    field: _Field, rows: Tensor, blocks: Tensor, first: Tensor, first_tokens: Tensor, runner_up: bool
) -> Tensor:
    """A score [N] that the winner (with ``runner_up``, the second best) reaches at least, a little lowered.

    Where a law is peaked its likeliest tokens tell, where it is flat those that come first in their blocks.
    """
    n, num_blocks = field.tops.shape
    leading = field.tops.topk(min(_LEADERS, num_blocks), dim=-1).indices
    every = torch.arange(n, device=rows.device).unsqueeze(-1)
    tokens, opened = field.open(every, leading)
    weight, column = opened.max(dim=-1, keepdim=True)
    likeliest = tokens.gather(-1, column).squeeze(-1)
    scores = weight.squeeze(-1).double() / times(field.keys.unsqueeze(-1), likeliest)
    place = 2 if runner_up else 1
    of_leaders = scores.topk(place, dim=-1).values[:, -1]

    inside = first_tokens < field.vocab
    weight = torch.where(inside, field.weights[rows, first_tokens.clamp(max=field.vocab - 1)], 0.0)
    scores = weight.double() / first
    of_first = _best_of(rows, scores, n)
    if place == 2:
        of_first = _best_of(rows, torch.where(scores < of_first[rows], scores, 0.0), n)
    return torch.maximum(of_leaders, of_first) * _SLACK


def _best_of(rows: Tensor, scores: Tensor, num_rows: int) -> Tensor:
    """Largest score of each row, 0 for a row without any."""
    return scores.new_zeros(num_rows).scatter_reduce_(0, rows, scores, "amax")


def _lead(best: Tensor, second: Tensor) -> Tensor:
    lead = (best.log() - second.log()).clamp(max=MAX_LEAD).float()
    return torch.where(best > 0, lead, torch.nan)
