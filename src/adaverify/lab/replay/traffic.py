"""Batches for a replay: which round each seat plays in each step.

A seat plays the rounds of one request after another, one round a step; when the request ends, the next one in the
queue starts there. Every policy is given the same rounds: one that verifies fewer drafts emits fewer tokens a round
and would need more rounds for the same text, and those further rounds are taken to be like the recorded ones
(rounds are exchangeable). Rates, not durations of requests, are therefore what a replay says something about.
Each request enters with its prompt computed; where prompts are played, too, they come as ``prompts.py`` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from adaverify.errors import ConfigError
from adaverify.lab.replay.prompts import Prompts
from adaverify.lab.replay.rounds import Rounds
from adaverify.lab.trace.trace import Bools, Ints

_FOREVER = 1 << 62


@dataclass(frozen=True)
class Traffic:
    """A schedule of rounds.

    Attributes
    ----------
    rounds : int64 [T, N]
        Index of the round that each of N seats plays in each of T steps; -1 where it is empty.
    started : bool [T, N]
        Where a request plays its first round in that seat.
    prompts : Prompts, optional
        Read beside the rounds; none by default.
    """

    rounds: Ints
    started: Bools
    prompts: Prompts | None = None

    @classmethod
    def build(
        cls,
        rounds: Rounds,
        concurrency: int,
        seed: int | None = None,
        num_rounds: int | None = None,
        active: Ints | None = None,
    ) -> Traffic:
        """Seat the requests of ``rounds``.

        Parameters
        ----------
        rounds : Rounds
        concurrency : int
            Seats, N.
        seed : int, optional
            Shuffles the requests; by default they come in the order in which they were recorded.
        num_rounds : int, optional
            Play at least as many rounds with every seat taken, starting over with the first request if need be. By
            default every round is played once and the batch drains at the end.
        active : int [T], optional
            Seats open in each step, 1 to N, for a load that varies. A seat that closes gives its request up; one
            that opens starts a new one. Requests are used again if need be.

        Raises
        ------
        ConfigError
            The load is not positive, asks for more seats than there are, or for more than there are requests to
            play once.
        """
        _check_load(rounds, concurrency, num_rounds, active)
        if active is None and num_rounds is None:
            plays = _seat(rounds, [[(0, _FOREVER)]] * concurrency, _queue(rounds, seed, again=False))
        elif active is None:
            assert num_rounds is not None
            end = -(-num_rounds // concurrency)
            plays = _seat(rounds, [[(0, end)]] * concurrency, _queue(rounds, seed, again=True))
        else:
            spans = [_spans(active > seat) for seat in range(concurrency)]
            plays = _seat(rounds, spans, _queue(rounds, seed, again=True))
        return cls._fill(rounds, concurrency, plays)

    @classmethod
    def _fill(cls, rounds: Rounds, num_seats: int, plays: Ints) -> Traffic:
        seat, start, request, length = plays.T
        num_steps = int((start + length).max())
        played = np.full((num_steps, num_seats), -1, dtype=np.int64)
        started = np.zeros((num_steps, num_seats), dtype=bool)
        # How far into its request each round lies.
        into = np.arange(length.sum()) - np.repeat(length.cumsum() - length, length)
        played[np.repeat(start, length) + into, np.repeat(seat, length)] = (
            np.repeat(rounds.first[request], length) + into
        )
        started[start, seat] = True
        return cls(played, started)

    @property
    def num_steps(self) -> int:
        """Steps, T."""
        return len(self.rounds)

    @property
    def num_seats(self) -> int:
        """Seats, N."""
        return self.rounds.shape[1]

    @property
    def num_rounds(self) -> int:
        """Rounds played in all."""
        return int((self.rounds >= 0).sum())


def _check_load(rounds: Rounds, concurrency: int, num_rounds: int | None, active: Ints | None) -> None:
    if concurrency < 1 or (num_rounds is not None and num_rounds < 1):
        raise ConfigError(f"concurrency is {concurrency} and rounds {num_rounds}; both must be at least 1")
    if active is not None:
        if num_rounds is not None:
            raise ConfigError("give either a number of rounds or the open seats of each step, not both")
        if len(active) == 0 or active.min() < 1 or active.max() > concurrency:
            raise ConfigError(f"each step needs 1 to {concurrency} open seats; got {active.tolist()[:8]}")
    elif num_rounds is None and concurrency > len(rounds.first):
        raise ConfigError(
            f"{len(rounds.first)} requests cannot fill {concurrency} seats; lower --concurrency, or use requests "
            "several times with --rounds"
        )


def _queue(rounds: Rounds, seed: int | None, again: bool) -> Iterator[int]:
    """Requests in the order in which they start, endlessly if they may be used again."""
    rng = None if seed is None else np.random.default_rng(seed)
    while True:
        count = len(rounds.first)
        yield from (np.arange(count) if rng is None else rng.permutation(count)).tolist()
        if not again:
            return


def _spans(is_open: Bools) -> list[tuple[int, int]]:
    """Stretches of steps, first and one past the last, in which a seat is open."""
    edges = np.flatnonzero(np.diff(is_open.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _seat(rounds: Rounds, spans: list[list[tuple[int, int]]], queue: Iterator[int]) -> Ints:
    """Give the next request to the seat that is free first, the lower one of two.

    Returns
    -------
    int64 [P, 4]
        Seat, first step, request and number of rounds of each play.
    """
    lengths = rounds.lengths.tolist()
    # First free step, seat, and which of the seat's spans that lies in.
    free = [(own[0][0], seat, 0) for seat, own in enumerate(spans) if own]
    heapify(free)
    plays = []
    while free:
        start, seat, span = heappop(free)
        request = next(queue, None)
        if request is None:
            break
        close = spans[seat][span][1]
        end = min(start + lengths[request], close)
        plays.append((seat, start, request, end - start))
        if end < close:
            heappush(free, (end, seat, span))
        elif span + 1 < len(spans[seat]):
            heappush(free, (spans[seat][span + 1][0], seat, span + 1))
    return np.array(plays, dtype=np.int64)
