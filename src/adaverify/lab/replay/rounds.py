"""What each request drafted in each step and what would have been accepted of it: the material of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from adaverify.errors import ConfigError, TraceError
from adaverify.lab.trace import Drafts, RunInfo, Trace
from adaverify.lab.trace.schema import REJECTED
from adaverify.lab.trace.trace import Bools, Columns, Floats, Ints

FEATURES = ("logit_q_max", "q_max", "q_sampled", "entropy", "margin", "head_logit", "overlap")


@dataclass(frozen=True)
class Blocks(Columns):
    """One entry a round, a request's part of one step: all that a server knows of it before it verifies.

    Attributes
    ----------
    run : int16 [M]
        Index in :attr:`Rounds.runs`.
    request : int64 [M]
        Counted from 0 over all runs; the rounds of one request follow each other in time.
    dataset : int32 [M]
        Index in :attr:`Rounds.datasets`.
    temperature : float32 [M]
    telling : bool [M]
        False where labels say nothing about other requests.
    context : int32 [M]
    num_drafts : int64 [M]
        Drafts recorded, 1 to K.
    logit_q_max, q_max, q_sampled, entropy, margin, head_logit, overlap : float32 [M, K]
        As in a trace; nan beyond ``num_drafts``. The overlap of a greedy draft is 1 or 0, as it was accepted or not.
    """

    request: Ints
    dataset: Ints
    temperature: Floats
    telling: Bools
    context: Ints
    num_drafts: Ints
    logit_q_max: Floats
    q_max: Floats
    q_sampled: Floats
    entropy: Floats
    margin: Floats
    head_logit: Floats
    overlap: Floats


@dataclass(frozen=True)
class Rounds:
    """The rounds of one drafter, in the order (request, step).

    Attributes
    ----------
    runs : tuple of RunInfo
        That recorded them; alike in all that matters to a policy.
    datasets : tuple of str
    blocks : Blocks
    num_verified : int64 [M]
        Drafts whose outcome is known; no replayed policy can verify more. Fewer than ``num_drafts`` where a draft
        distribution was not finite or the recording step had no room.
    num_accepted : int64 [M]
        Length of the accepted prefix when all of these are verified.
    """

    runs: tuple[RunInfo, ...]
    datasets: tuple[str, ...]
    blocks: Blocks
    num_verified: Ints
    num_accepted: Ints

    @classmethod
    def of(cls, trace: Trace) -> Rounds:
        """The rounds of a trace of one drafter; see :func:`by_drafter`.

        Raises
        ------
        TraceError
            A run trimmed its drafts, so that outcomes are missing; a block is not whole; nothing was verified.
        ConfigError
            The trace holds several drafters.
        """
        _check_runs(trace)
        return _collect(trace.runs, trace.datasets, trace.drafts)

    def __len__(self) -> int:
        return len(self.num_accepted)

    @property
    def info(self) -> RunInfo:
        """The first run, which stands for all: drafter, K, and when q is known."""
        return self.runs[0]

    @property
    def num_speculative_tokens(self) -> int:
        """Drafts a round at most, K."""
        return self.info.num_speculative_tokens

    @property
    def recorded_concurrency(self) -> int:
        """Requests that ran at once at most: as many as the engine had seats, if there were so many."""
        return min(max(run.max_num_seqs for run in self.runs), len(self.first))

    @cached_property
    def first(self) -> Ints:
        """Index of the first round of every request, int64."""
        request = self.blocks.request
        return np.flatnonzero(np.concatenate([[True], request[1:] != request[:-1]]))

    @property
    def lengths(self) -> Ints:
        """Rounds of every request, int64."""
        return np.diff(self.first, append=len(self))

    @property
    def recorded_datasets(self) -> list[str]:
        """Datasets that any request belongs to."""
        return [self.datasets[i] for i in np.unique(self.blocks.dataset)]

    def share_recorded(self, feature: str) -> float:
        """The share of usable drafts for which a feature was recorded, 0 to 1."""
        usable = np.isfinite(self.blocks.logit_q_max)
        usable &= np.arange(usable.shape[1]) < self.num_verified[:, None]
        return float(np.isfinite(getattr(self.blocks, feature)[usable]).mean()) if usable.any() else 0.0

    def of_datasets(self, names: Sequence[str]) -> Rounds:
        """The requests of some datasets.

        Raises
        ------
        ConfigError
            A dataset was not recorded.
        """
        unknown = [name for name in names if name not in self.recorded_datasets]
        if unknown:
            known = ", ".join(self.recorded_datasets)
            raise ConfigError(f"dataset {', '.join(unknown)} was not recorded; choose from {known}")
        wanted = np.isin(self.blocks.dataset, [self.datasets.index(name) for name in names])
        blocks = self.blocks.select(wanted)
        _, request = np.unique(blocks.request, return_inverse=True)
        return replace(
            self,
            blocks=replace(blocks, request=request),
            num_verified=self.num_verified[wanted],
            num_accepted=self.num_accepted[wanted],
        )


def by_drafter(trace: Trace) -> list[Trace]:
    """One trace for each drafter, with its target and manner of drafting and verifying, in order of appearance."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, run in enumerate(trace.runs):
        groups.setdefault(_kind(run), []).append(i)
    return [trace] if len(groups) == 1 else [trace.of_runs(indices) for indices in groups.values()]


def _kind(run: RunInfo) -> tuple[Any, ...]:
    """What runs must share for their rounds to be replayed together."""
    return (
        run.target,
        run.drafter,
        run.method,
        run.num_speculative_tokens,
        run.knows_q_before_draw,
        run.drafts_in_parallel,
        run.draft_sample_method,
        run.rejection_sample_method,
    )


def _check_runs(trace: Trace) -> None:
    trimmed = [run.run for run in trace.runs if run.trimmed]
    if trimmed:
        raise TraceError(
            f"run {', '.join(trimmed)} trimmed its drafts, so what else would have been accepted is unknown; "
            "replay needs every outcome: record with --no-trim"
        )
    if len({_kind(run) for run in trace.runs}) > 1:
        raise ConfigError("the trace holds several drafters; replay them one at a time, as by_drafter() parts them")


def _collect(runs: tuple[RunInfo, ...], datasets: tuple[str, ...], drafts: Drafts) -> Rounds:
    """Gather drafts into rounds, ordered by request and then by step."""
    K = runs[0].num_speculative_tokens
    starts = np.flatnonzero(drafts.position == 1)
    _check_blocks(runs, drafts, starts, K)
    order = np.lexsort([drafts.step[starts], drafts.request[starts], drafts.run[starts]])
    row_of_round = np.empty_like(order)
    row_of_round[order] = np.arange(len(order))
    rows = np.repeat(row_of_round, np.diff(starts, append=len(drafts)))
    cells = rows, drafts.position.astype(np.int64) - 1

    def table(values: Any, fill: Any) -> Any:
        filled = np.full((len(order), K), fill, dtype=values.dtype)
        filled[cells] = values
        return filled

    heads = drafts.select(starts[order])
    same = (heads.request[1:] == heads.request[:-1]) & (heads.run[1:] == heads.run[:-1])
    blocks = Blocks(
        run=heads.run,
        request=np.concatenate([[0], np.cumsum(~same)]),
        dataset=heads.dataset,
        temperature=heads.temperature,
        telling=heads.telling,
        context=heads.context,
        num_drafts=np.diff(starts, append=len(drafts))[order],
        **{name: table(getattr(drafts, name), np.nan) for name in FEATURES},
    )
    outcome = table(drafts.accepted, False)
    # a greedy draft is accepted without chance; of those behind a rejection nothing can come any more
    chanceless = (blocks.temperature == 0)[:, None] & np.isfinite(blocks.logit_q_max) & np.isnan(blocks.overlap)
    blocks.overlap[chanceless] = outcome[chanceless]
    accepted = outcome.cumprod(axis=1).sum(axis=1)
    admitted = table(drafts.admitted, False).cumprod(axis=1).sum(axis=1)
    rejected = table(drafts.label == REJECTED, False).any(axis=1)
    # Without a rejection nothing is known behind the accepted prefix.
    verified = np.where(rejected, np.maximum(admitted, accepted + 1), accepted)
    if not verified.any():
        raise TraceError(f"run {', '.join(run.run for run in runs)}: no draft was verified; there is nothing to replay")
    return Rounds(runs, datasets, blocks, num_verified=verified, num_accepted=accepted)


def _check_blocks(runs: tuple[RunInfo, ...], drafts: Drafts, starts: Ints, K: int) -> None:
    """Refuse blocks with missing, doubled or mixed drafts: a rotated file may have been lost."""
    inside = np.ones(len(drafts), dtype=bool)
    inside[starts] = False
    rows = np.flatnonzero(inside)
    whole = rows > 0
    for name, step in (("position", 1), ("step", 0), ("request", 0), ("run", 0)):
        values = getattr(drafts, name)
        # Row 0 compares with the last row here, but it is refused already.
        whole &= values[rows] - values[rows - 1] == step
    bad = np.concatenate([rows[~whole], np.flatnonzero(drafts.position > K)])
    if len(bad):
        row = int(bad.min())
        raise TraceError(
            f"run {runs[int(drafts.run[row])].run}, step {drafts.step[row]}, request {drafts.request[row]}: position "
            f"{drafts.position[row]} does not follow the one before it; drafts are missing or doubled, record it again"
        )
