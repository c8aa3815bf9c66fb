"""The cheapest way to draft a given number of drafts that will be accepted: for the clairvoyant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from adaverify.lab.trace.trace import Bools, Floats, Ints

# Tables of this many numbers stay in the processor's cache.
_CELLS_AT_A_TIME = 1 << 16


class Drafting(Protocol):
    """Ways of drafting in each of T steps.

    Attributes
    ----------
    cost : float64 [T, B + 1]
        Least milliseconds for 0 to B drafts that will be accepted; inf where there are fewer.
    """

    cost: Floats

    def depths(self, budget: Ints) -> Ints:
        """How deep each request drafts, int64 [T, N], for so many drafts a step, int64 [T]."""


class ParallelDrafting:
    """One pass for those who draft: cheapest are few requests with many drafts each.

    Parameters
    ----------
    accepted : int64 [T, N]
        Drafts that would be accepted.
    draft_pass : float64 [N + 1]
        Milliseconds by requests; not falling.
    """

    def __init__(self, accepted: Ints, draft_pass: Floats) -> None:
        self._accepted = accepted
        self._best_first = np.argsort(-accepted, axis=1, kind="stable")
        self._sorted = np.take_along_axis(accepted, self._best_first, axis=1)
        totals = accepted.sum(axis=1)
        T, N = accepted.shape
        self.cost = np.full((T, int(totals.max(initial=0)) + 1), np.inf)
        self.cost[:, 0] = 0.0
        step = np.repeat(np.arange(T), totals)
        number = np.arange(len(step)) - np.repeat(totals.cumsum() - totals, totals) + 1
        requests = np.repeat(np.tile(np.arange(1, N + 1), T), self._sorted.ravel())
        self.cost[step, number] = draft_pass[requests]

    def depths(self, budget: Ints) -> Ints:
        """Fill request after request, those with most to accept first."""
        before = self._sorted.cumsum(axis=1) - self._sorted
        depths = np.zeros_like(self._accepted)
        taken = np.clip(budget[:, None] - before, 0, self._sorted)
        np.put_along_axis(depths, self._best_first, taken, axis=1)
        return depths


@dataclass
class ChainDrafting:
    """A pass for every depth, over the requests that still draft there.

    Which requests draft to depth i is a matter of number alone: of the m_i that would have their i-th draft accepted
    some n_i do, in any order of the n_i, since m_i falls with i. So the least cost of B drafts is that of the best
    n_1 + ... + n_K = B, found depth after depth.

    Parameters
    ----------
    accepted : int64 [T, N]
    draft_passes : float64 [K, N + 1]
        Milliseconds by requests of the pass to each depth; not falling.
    """

    accepted: Ints
    draft_passes: Floats
    cost: Floats = field(init=False)
    _choices: list[list[Ints]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.cost = np.full((len(self.accepted), int(self.accepted.sum(axis=1).max(initial=0)) + 1), np.inf)
        for steps in self._parts():
            reaching = self._reaching(steps)
            cost: Floats = np.zeros((len(reaching), 1))
            choices = []
            for most, draft_pass in zip(reaching.T, self.draft_passes, strict=True):
                cost, choice = _add_depth(cost, most, draft_pass)
                choices.append(choice)
            width = min(cost.shape[1], self.cost.shape[1])
            self.cost[steps, :width] = cost[:, :width]
            self._choices.append(choices)

    def depths(self, budget: Ints) -> Ints:
        """Retrace how many requests draft to each depth; those with most to accept draft deepest."""
        depths = np.zeros_like(self.accepted)
        best_first = np.argsort(-self.accepted, axis=1, kind="stable")
        for steps, choices in zip(self._parts(), self._choices, strict=True):
            left = budget[steps].copy()
            by_rank = np.zeros_like(self.accepted[steps])
            for choice in reversed(choices):
                count = choice[np.arange(len(left)), left]
                by_rank += np.arange(by_rank.shape[1]) < count[:, None]
                left -= count
            np.put_along_axis(depths[steps], best_first[steps], by_rank, axis=1)
        return depths

    def _parts(self) -> Iterator[slice]:
        size = max(1, _CELLS_AT_A_TIME // (self.accepted.shape[1] * len(self.draft_passes)))
        return (slice(start, start + size) for start in range(0, len(self.accepted), size))

    def _reaching(self, steps: slice) -> Ints:
        """Requests of each step whose i-th draft would be accepted, int64 [T, K]."""
        depths = range(1, len(self.draft_passes) + 1)
        return np.stack([(self.accepted[steps] >= i).sum(axis=1) for i in depths], axis=1)


def _add_depth(cost: Floats, most: Ints, draft_pass: Floats) -> tuple[Floats, Ints]:
    """Least cost with one more depth, and how many requests draft to it.

    Parameters
    ----------
    cost : float64 [T, B + 1]
        Without it, by number of drafts.
    most : int64 [T]
        Requests that may draft to it.
    draft_pass : float64 [N + 1]
    """
    T, width = cost.shape
    top = int(most.max(initial=0))
    best = np.full((T, width + top), np.inf)
    choice = np.zeros((T, width + top), dtype=np.int16)
    for count in range(top + 1):
        allowed = np.where(most >= count, draft_pass[count], np.inf)
        there = slice(count, count + width)
        candidate = cost + allowed[:, None]
        better: Bools = candidate < best[:, there]
        np.copyto(best[:, there], candidate, where=better)
        np.copyto(choice[:, there], np.int16(count), where=better)
    return best, choice
