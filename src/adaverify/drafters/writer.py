"""Draws the drafts of a round and collects them: tokens, features, laws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaverify.drafters.base import DraftBlock, GoOn
from adaverify.engine.request import Request
from adaverify.policy.features import LawDetails, law_details, log_odds_of_max
from adaverify.sampling.coupled import likeliest_drafts, race_drafts
from adaverify.sampling.laws import DraftLaws
from adaverify.sampling.noise import position_keys
from adaverify.sampling.processors import SamplingTensors, draw_drafts
from adaverify.sampling.rng import Purpose, uniforms
from adaverify.sampling.top import most_likely


class LawBuffer:
    """Storage for laws that is used again every step: fresh pages cost more than the drafts' arithmetic."""

    def __init__(self, device: torch.device) -> None:
        self._storage = torch.empty(0, device=device)

    def rows(self, num_rows: int, width: int) -> Tensor:
        """Room for ``num_rows`` laws of ``width`` columns; overwrites those given out before."""
        if self._storage.numel() < num_rows * width:
            self._storage = torch.empty(num_rows * width, device=self._storage.device)
        return self._storage[: num_rows * width].view(num_rows, width)


class DraftWriter:
    """One round of drafting for R requests, ``depth`` positions deep.

    Parameters
    ----------
    requests : sequence of Request
    depth : int
        Positions that there is room for; a block that ends early has fewer.
    width : int
        Columns W of the draft logits.
    columns : Tensor [W] int64, optional
        Token of each column where the draft vocabulary is reduced.
    greedy : bool
        Take the most likely token (q is one-hot) instead of drawing from q.
    buffer : LawBuffer
    own_columns : bool
        Each row brings columns of its own (candidates) to :meth:`draw`.
    keep_details : bool
        Collect :class:`~adaverify.policy.features.LawDetails`.
    coupled : bool
        Draw with the noise that the target's tokens will be drawn with; laws are then kept only beside details.

    Attributes
    ----------
    drawn : int
        Positions drawn so far.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        depth: int,
        width: int,
        greedy: bool,
        buffer: LawBuffer,
        device: torch.device,
        columns: Tensor | None = None,
        own_columns: bool = False,
        keep_details: bool = False,
        coupled: bool = False,
    ) -> None:
        self.sampling = SamplingTensors.from_params([r.params for r in requests], [r.seed for r in requests], device)
        self._one_hot = greedy or all(r.params.is_greedy for r in requests)
        # dividing by 1 would be a pass over every law
        self._is_tempered = any(not r.params.is_greedy and r.params.temperature != 1 for r in requests)
        count = len(requests)
        self.depth = depth
        self.drawn = 0
        self.columns = columns
        self.tokens = torch.empty(count, depth, dtype=torch.long, device=device)
        self.features = torch.empty(count, depth, device=device)
        self.confidence: Tensor | None = None
        self._details = LawDetails(*torch.empty(3, count, depth, device=device)) if keep_details else None
        self._margin = torch.empty(count, depth, device=device) if coupled else None
        keeps_laws = not self._one_hot and (keep_details or not coupled)
        self._q = buffer.rows(count * depth, width).view(count, depth, width) if keeps_laws else None
        self._own_columns: Tensor | None = None
        if own_columns:
            self._own_columns = torch.zeros(count, depth, width, dtype=torch.long, device=device)
        self._noise = (coupled_noise if coupled else draft_noise)(requests, depth, self.sampling.seeds)

    def draw(self, i: int, logits: Tensor, columns: Tensor | None = None) -> Tensor:
        """Draw draft ``i`` of every request from ``logits`` [R, W]; gives the tokens [R]."""
        index = self._draw(slice(i, i + 1), logits, self.sampling, columns)
        if columns is not None:
            assert self._own_columns is not None
            self._own_columns[:, i] = columns
            self.tokens[:, i] = columns.gather(-1, index[:, None])[:, 0]
        else:
            self.tokens[:, i] = index if self.columns is None else self.columns[index]
        self.drawn = i + 1
        return self.tokens[:, i]

    def draw_all(self, logits: Tensor) -> None:
        """Draw all drafts at once from ``logits`` [R, K, W], whose laws do not depend on each other's draws."""
        index = self._draw(slice(None), logits.flatten(0, 1), self.sampling.repeat(self.depth))
        self.tokens[:] = (index if self.columns is None else self.columns[index]).view(self.tokens.shape)
        self.drawn = self.depth

    def wants_more(self, go_on: GoOn | None) -> bool:
        """Whether there is room for another position, and ``go_on`` has it drafted."""
        if self.drawn == self.depth:
            return False
        last = self.drawn - 1
        margins = None if self._margin is None else self._margin[:, last]
        return go_on is None or go_on(last, self.features[:, last], margins)

    def _draw(self, at: slice, logits: Tensor, sampling: SamplingTensors, own: Tensor | None = None) -> Tensor:
        """Draw the drafts of positions ``at`` from ``logits`` [R * positions, W]; gives their columns."""
        temperature = sampling.temperature if self._is_tempered else None
        self.features[:, at] = self._rows(log_odds_of_max(logits, temperature))
        q: Tensor | None = None
        noise = self._noise[:, at].flatten()
        if self._margin is None:
            index, q = (most_likely(logits)[1], None) if self._one_hot else draw_drafts(logits, sampling, noise)
        else:
            columns = self.columns if own is None else own
            drafts = (
                likeliest_drafts(logits, sampling) if self._one_hot else race_drafts(logits, sampling, noise, columns)
            )
            index, q = drafts.column, drafts.q
            self._margin[:, at] = self._rows(drafts.margins)
        if self._q is not None and q is not None:
            self._q[:, at] = self._rows(q)
        if self._details is not None:
            for column, values in zip(self._details, law_details(logits, index, temperature), strict=True):
                column[:, at] = self._rows(values)
        return index

    def _rows(self, values: Tensor) -> Tensor:
        """Unflatten the requests: [R * positions, ...] to [R, positions, ...]."""
        return values.unflatten(0, (len(self.tokens), -1))

    def block(self) -> DraftBlock:
        """The finished round: what has been drawn."""
        laws, drawn = None, slice(self.drawn)
        if self._q is not None:
            own = None if self._own_columns is None else self._own_columns.flatten(0, 1)
            laws = DraftLaws(self._q.flatten(0, 1), self.columns if own is None else own)
        details = self._details and LawDetails(*(values[:, drawn] for values in self._details))
        margin = None if self._margin is None else self._margin[:, drawn]
        tokens, features = self.tokens[:, drawn], self.features[:, drawn]
        return DraftBlock(tokens, features, laws, self.confidence, details, margin, laws_per_request=self.depth)


def draft_noise(requests: Sequence[Request], depth: int, seeds: Tensor) -> Tensor:
    """Uniforms [R, K], keyed by position and by depth in the block: see ``sampling.rng``."""
    depths = torch.arange(depth, device=seeds.device).expand(len(requests), -1)
    return uniforms(seeds, Purpose.DRAFT, _positions(requests, depth, seeds), depths)


def coupled_noise(requests: Sequence[Request], depth: int, seeds: Tensor) -> Tensor:
    """Keys [R, K] of the noise at each position: see ``sampling.noise``."""
    return position_keys(seeds, _positions(requests, depth, seeds))


def _positions(requests: Sequence[Request], depth: int, seeds: Tensor) -> Tensor:
    """Absolute positions [R, K] of a block's drafts."""
    first = torch.tensor([r.num_tokens for r in requests], dtype=torch.long, device=seeds.device)
    return first[:, None] + torch.arange(depth, device=seeds.device)
