"""What a policy is given, what it answers, and what it may learn from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from adaverify.lab.replay.costs import Prices
from adaverify.lab.replay.prompts import Reading
from adaverify.lab.replay.rounds import Blocks, Rounds
from adaverify.lab.trace.trace import Bools, Floats, Ints


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps as a server sees them before it verifies: drafts, seats and starts, but no outcomes.

    Attributes
    ----------
    blocks : Blocks
        All rounds of the replay.
    rounds : int64 [T, N]
        The round that each of N seats plays in each of T steps; -1 where it is empty.
    started : bool [T, N]
        Where a seat plays the first round of a request.
    reading : Reading, optional
        Of prompts, where the policy heeds them.
    """

    blocks: Blocks
    rounds: Ints
    started: Bools
    reading: Reading | None = None

    @cached_property
    def active(self) -> Bools:
        """Seats that are taken, [T, N]."""
        return self.rounds >= 0

    @cached_property
    def num_requests(self) -> Ints:
        """Requests of each step, [T]."""
        return self.active.sum(axis=1)

    @property
    def prompts(self) -> Reading:
        """What each step reads of prompts."""
        return Reading.none(len(self.rounds)) if self.reading is None else self.reading

    @property
    def num_sampling(self) -> Ints:
        """Tokens that each step gives whatever is verified, [T]: one a request, and one a prompt that ends."""
        return np.asarray(self.num_requests + self.prompts.ended)

    @property
    def num_non_draft(self) -> Ints:
        """Packed tokens of each step without drafts, [T]."""
        return np.asarray(self.num_requests + self.prompts.tokens)

    @cached_property
    def num_drafts(self) -> Ints:
        """Drafts that each request can use, int64 [T, N]; 0 in an empty seat."""
        return np.where(self.active, self.blocks.num_drafts[self.rounds], 0)

    @property
    def greedy(self) -> Bools:
        """Requests that are not sampled, [T, N]."""
        return self.active & (self.blocks.temperature[self.rounds] == 0)

    @property
    def telling(self) -> Bools:
        """Requests whose labels count, [T, N]."""
        return self.active & self.blocks.telling[self.rounds]

    def feature(self, name: str) -> Floats:
        """A feature of every draft, float32 [T, N, K]; nan where there is none."""
        values = getattr(self.blocks, name)[self.rounds]
        values[~self.active] = np.nan
        return np.asarray(values)

    def everywhere(self, depth: Ints) -> Ints:
        """Depths [T, N] of a batch that is drafted to one depth a step [T]."""
        return np.where(self.active, depth[:, None], 0)


@dataclass(frozen=True)
class Decision:
    """What is drafted and verified in each of T steps.

    Attributes
    ----------
    depth : int64 [T, N]
        Drafts made, and paid for.
    admitted : int64 [T, N]
        Drafts verified.
    budget : int64 [T], optional
        Drafts that the whole batch was allowed.
    predictions : float32 [T, N, K], optional
        Chance of acceptance of each draft, given the ones before it, that the decision was made by.
    """

    depth: Ints
    admitted: Ints
    budget: Ints | None = None
    predictions: Floats | None = None


class Coefficients(NamedTuple):
    """What an estimator has learned so far."""

    num_refits: int
    slope: float
    intercepts: tuple[float, ...]


@dataclass(frozen=True)
class Setting:
    """What a policy is made for.

    Attributes
    ----------
    rounds : Rounds
        Outcomes included; only the clairvoyant looks at those.
    prices : Prices
        The costs to decide by.
    num_seats : int
    """

    rounds: Rounds
    prices: Prices
    num_seats: int

    @property
    def num_speculative_tokens(self) -> int:
        """Drafts a round at most, K."""
        return self.rounds.num_speculative_tokens


class Policy(ABC):
    """Decides what is drafted and verified. One object serves one replay.

    Attributes
    ----------
    name : str
    lossless : bool
        Whether the text keeps the target's distribution under standard verification.
    attainable : bool
        False for a bound: it knows what no server does.
    steps_ahead : int, optional
        Steps that it decides before it must have seen their outcome; all by default. A policy that learns from
        every step has 1.
    heeds_prompts : bool
        Whether it decides by the prompts that a step reads, and so a step at a time where there are any.
    """

    name: str
    lossless: bool = True
    attainable: bool = True
    steps_ahead: int | None = None
    heeds_prompts: bool = False

    @abstractmethod
    def decide(self, stretch: Stretch) -> Decision:
        """Decide the next steps; never more than :attr:`steps_ahead`, in order."""

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:  # noqa: B027 - most learn nothing
        """Learn from the steps just decided.

        Parameters
        ----------
        stretch : Stretch
        decision : Decision
            As carried out: drafts that the recording could not verify are not admitted.
        accepted : int64 [T, N]
            Accepted drafts among the admitted ones. Where they are fewer, the next one was rejected; nothing is
            known of those behind it.
        """

    @property
    def coefficients(self) -> Coefficients | None:
        """What has been learned, by a policy that learns."""
        return None
