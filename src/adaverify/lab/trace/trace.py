"""A trace in memory: columns of drafts and of steps, and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.trace.info import RunInfo
from adaverify.lab.trace.schema import ACCEPTED, UNOBSERVED

_Columns = TypeVar("_Columns", bound="Columns")
Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """Columns of equal length; see ``docs/traces.md`` for each.

    Attributes
    ----------
    run : int16
        Index in :attr:`Trace.runs`.
    """

    run: Ints

    def __len__(self) -> int:
        return len(self.run)

    def select(self: _Columns, rows: Any) -> _Columns:
        """The same columns with the given rows only (a mask, indices or a slice)."""
        return replace(self, **{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @classmethod
    def concatenate(cls: type[_Columns], parts: Sequence[_Columns]) -> _Columns:
        """The rows of all parts, one after the other."""
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)})


@dataclass(frozen=True)
class Drafts(Columns):
    """One entry a draft, in the order (run, step, request, position).

    Attributes
    ----------
    step, request : int64
        Within the run.
    position : int8
        Of the draft in its block, from 1.
    dataset : int32
        Index in :attr:`Trace.datasets`.
    temperature, top_p : float32
        Of the request; temperature 0 is greedy.
    telling : bool
        False where penalties, bias or forbidden tokens bend the target's distribution alone.
    context : int32
        Tokens of the request before the block.
    logit_q_max, q_max, q_sampled, entropy, margin : float32
        Of the temperature-scaled draft distribution: log-odds and probability of its likeliest token, probability
        of the token drawn, entropy in nats, difference of its two largest log-probabilities.
    q_sampled_before : float32
        ``q_sampled`` of the position before; nan at position 1.
    head_logit : float32
        Log-odds from the drafter's own confidence head; nan without one.
    prediction : float32
        The chance of acceptance that adaptive verification worked with.
    admitted : bool
    label : int8
        1 accepted, 0 rejected, -1 unobserved.
    overlap : float32
        1 - TV(p, q), the true chance of acceptance; nan unless it was recorded.
    """

    step: Ints
    request: Ints
    position: Ints
    dataset: Ints
    temperature: Floats
    top_p: Floats
    telling: Bools
    context: Ints
    logit_q_max: Floats
    q_max: Floats
    q_sampled: Floats
    entropy: Floats
    margin: Floats
    q_sampled_before: Floats
    head_logit: Floats
    prediction: Floats
    admitted: Bools
    label: Ints
    overlap: Floats

    @property
    def is_labelled(self) -> Bools:
        """Drafts that were accepted or rejected, and say something about other requests."""
        return np.asarray((self.label != UNOBSERVED) & self.telling)

    @property
    def accepted(self) -> Bools:
        """Drafts that were accepted."""
        return np.asarray(self.label == ACCEPTED)

    @property
    def is_greedy(self) -> Bools:
        """Drafts of greedy requests."""
        return np.asarray(self.temperature == 0)


@dataclass(frozen=True)
class Steps(Columns):
    """One entry a step that drafted, in the order (run, step).

    Attributes
    ----------
    step : int64
    seconds : float64
        Since the run's first step.
    num_requests, num_sampling : int32
        Requests that drafted, and those that drew a token.
    num_non_draft_tokens, num_packed_tokens : int32
        Tokens of the target's pass without drafts, and all.
    context_tokens : int64
        Tokens of all requests that drafted, before their drafts.
    max_draft_budget, draft_budget, num_admitted, num_accepted : int32
        Drafts that fitted, that the budget allowed, that were verified, that were accepted.
    draft_ms, verify_ms, step_ms : float32
        Drafting; the target's pass with sampling; the whole step.
    num_refits : int32
    slope : float32
    intercepts : float32 [N, K_max]
        The estimator's coefficients before the step; nan beyond the run's K.
    """

    step: Ints
    seconds: Floats
    num_requests: Ints
    num_sampling: Ints
    num_non_draft_tokens: Ints
    num_packed_tokens: Ints
    context_tokens: Ints
    max_draft_budget: Ints
    draft_budget: Ints
    num_admitted: Ints
    num_accepted: Ints
    draft_ms: Floats
    verify_ms: Floats
    step_ms: Floats
    num_refits: Ints
    slope: Floats
    intercepts: Floats


@dataclass(frozen=True)
class Trace:
    """Everything that was read from one or more recorded runs.

    Attributes
    ----------
    runs : tuple of RunInfo
    datasets : tuple of str
    drafts : Drafts
    steps : Steps
    """

    runs: tuple[RunInfo, ...]
    datasets: tuple[str, ...]
    drafts: Drafts
    steps: Steps

    @cached_property
    def labelled(self) -> Drafts:
        """The drafts that can be scored."""
        return self.drafts.select(self.drafts.is_labelled)

    @property
    def num_speculative_tokens(self) -> int:
        """The largest K of the runs."""
        return max(run.num_speculative_tokens for run in self.runs)

    def of_runs(self, indices: Sequence[int]) -> Trace:
        """The part of the trace that some runs recorded, with their indices counted anew."""
        number = np.full(len(self.runs), -1, dtype=np.int16)
        number[list(indices)] = np.arange(len(indices))

        def part(columns: _Columns) -> _Columns:
            own = columns.select(number[columns.run] >= 0)
            return replace(own, run=number[own.run])

        return Trace(tuple(self.runs[i] for i in indices), self.datasets, part(self.drafts), part(self.steps))
