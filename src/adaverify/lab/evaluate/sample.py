"""The labelled drafts of a trace, and what they are grouped by: pairs of models, requests, datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaverify.errors import TraceError
from adaverify.lab.trace import Drafts, RunInfo, Trace

MAX_BLOCKS = 200
# its first three are the models of a pair
_IDENTITY = ("drafter", "method", "target", "draft_sample_method", "rejection_sample_method")

Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Pair:
    """A drafter with its target and the way they sample: what coefficients belong to.

    Attributes
    ----------
    label : str
        The drafter's name, with whatever tells it from the other pairs.
    runs : tuple of int
        Indices in :attr:`Trace.runs`.
    num_speculative_tokens : int
        The largest K of its runs.
    models : tuple of str
        Drafter, method and target: what pairs may share that differ in their way of sampling alone.
    coupled : bool
        Whether drafts were verified by coupled sampling, under which no choice of drafts changes the text.
    trimmed : bool
        Whether only drafts that were expected to be accepted were verified, so that the others have no label.
    """

    label: str
    runs: tuple[int, ...]
    num_speculative_tokens: int
    models: tuple[str, ...]
    coupled: bool = False
    trimmed: bool = False


@dataclass(frozen=True)
class Sample:
    """Labelled drafts with the requests they come from.

    Requests are dealt at random to at most 200 blocks, which are what a bootstrap draws: the drafts of one request
    depend on each other. A fold of a cross-validation is made of whole blocks too.

    Attributes
    ----------
    drafts : Drafts
        Labelled, with a finite feature, in the order they were recorded.
    pairs : tuple of Pair
    datasets : tuple of str
    pair, block : ndarray of int16, shape [N]
        Index in ``pairs``; index of the block of the draft's request.
    num_requests, num_blocks : int
    num_left_out : int
        Labelled drafts whose draft distribution was not finite.
    """

    drafts: Drafts
    pairs: tuple[Pair, ...]
    datasets: tuple[str, ...]
    pair: Ints
    block: Ints
    num_requests: int
    num_blocks: int
    num_left_out: int

    @classmethod
    def of(cls, trace: Trace, seed: int = 0) -> Sample:
        """The labelled drafts of a trace.

        Raises
        ------
        TraceError
            There is none.
        """
        labelled = trace.labelled
        usable = np.isfinite(labelled.logit_q_max)
        drafts = labelled if usable.all() else labelled.select(usable)
        if not len(drafts):
            raise TraceError(
                f"none of {len(trace.drafts)} drafts has a label, so there is nothing to score; "
                "record again with --no-trim, or loosen the filters"
            )
        pairs = pairs_of(trace.runs)
        pair_of_run = np.empty(len(trace.runs), np.int16)
        for number, pair in enumerate(pairs):
            pair_of_run[list(pair.runs)] = number
        request, num_requests = _numbered_requests(drafts)
        num_blocks = min(MAX_BLOCKS, num_requests)
        block_of_request = (np.random.default_rng(seed).permutation(num_requests) % num_blocks).astype(np.int16)
        return cls(
            drafts=drafts,
            pairs=pairs,
            datasets=trace.datasets,
            pair=pair_of_run[drafts.run],
            block=block_of_request[request],
            num_requests=num_requests,
            num_blocks=num_blocks,
            num_left_out=int((~usable).sum()),
        )

    def __len__(self) -> int:
        return len(self.drafts)

    @property
    def depth(self) -> Ints:
        """Position from 0, shape [N]."""
        return self.drafts.position - 1

    @property
    def label(self) -> Bools:
        """Whether each draft was accepted, shape [N]."""
        return self.drafts.accepted

    @property
    def num_positions(self) -> int:
        """The largest K of all pairs."""
        return max(pair.num_speculative_tokens for pair in self.pairs)


def pairs_of(runs: Sequence[RunInfo]) -> tuple[Pair, ...]:
    """Runs of one drafter, target and way of sampling and of choosing what is verified, put together."""
    members: dict[tuple[str, ...], list[int]] = {}
    for number, run in enumerate(runs):
        members.setdefault(_identity(run), []).append(number)
    # beside the drafter's name, only what differs is worth saying
    drafters = [key[0] for key in members]
    varying = [i for i in range(1, len(next(iter(members), ()))) if len({key[i] for key in members}) > 1]
    labels = [
        key[0] if drafters.count(key[0]) == 1 else f"{key[0]} ({', '.join(key[i] for i in varying)})" for key in members
    ]
    return tuple(
        Pair(
            label=label,
            runs=tuple(indices),
            num_speculative_tokens=max(runs[i].num_speculative_tokens for i in indices),
            models=key[:3],
            coupled=runs[indices[0]].is_coupled,
            trimmed=runs[indices[0]].trimmed,
        )
        for label, (key, indices) in zip(labels, members.items(), strict=True)
    )


def one_of_each(pairs: Sequence[Pair]) -> list[str]:
    """Labels of pairs of different models; of those alike in these, one of standard and whole verification."""
    chosen: dict[tuple[str, ...], Pair] = {}
    for pair in sorted(pairs, key=lambda pair: (pair.trimmed, pair.coupled)):
        chosen.setdefault(pair.models, pair)
    return [pair.label for pair in pairs if chosen[pair.models] is pair]


def select(trace: Trace, datasets: Sequence[str] = (), drafters: Sequence[str] = ()) -> Trace:
    """The part of a trace that some datasets and drafters make up; all of them where none is named.

    Raises
    ------
    TraceError
        A name does not occur in the trace.
    """
    known = sorted({run.drafter for run in trace.runs})
    for kind, names, choices in (("dataset", datasets, list(trace.datasets)), ("drafter", drafters, known)):
        for name in names:
            if name not in choices:
                raise TraceError(f"no {kind} {name!r} was recorded; there are {', '.join(choices)}")
    if drafters:
        trace = trace.of_runs([i for i, run in enumerate(trace.runs) if run.drafter in drafters])
    if datasets:
        wanted = [trace.datasets.index(name) for name in datasets]
        trace = replace(trace, drafts=trace.drafts.select(np.isin(trace.drafts.dataset, wanted)))
    return trace


def _identity(run: RunInfo) -> tuple[str, ...]:
    return (*(getattr(run, name) for name in _IDENTITY), "trimmed" if run.trimmed else "not trimmed")


def _numbered_requests(drafts: Drafts) -> tuple[Ints, int]:
    """Requests of all runs counted through from 0, shape [N], and how many there are."""
    width = int(drafts.request.max()) + 1
    names, number = np.unique(drafts.run.astype(np.int64) * width + drafts.request, return_inverse=True)
    return number, len(names)
