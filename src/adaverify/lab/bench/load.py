"""How much is asked at once: a number of users that each wait for their answer, or arrivals at random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Load:
    """One load of a sweep.

    Attributes
    ----------
    max_concurrency : int, optional
        Requests at once. Without ``request_rate`` as many users ask, wait for the answer and ask again.
    request_rate : float, optional
        Arrivals a second, whether the server keeps up or not; ``max_concurrency`` then only caps.
    burstiness : float
        Shape of the gamma distribution of gaps: 1 is Poisson, less comes in bursts, more is even (as in vLLM).
    """

    max_concurrency: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0

    @property
    def is_closed(self) -> bool:
        """Whether a new request waits for an answer."""
        return self.request_rate is None

    @property
    def label(self) -> str:
        """A name, unique within a sweep: ``16`` at once, ``2.5/s`` arriving."""
        return str(self.max_concurrency) if self.is_closed else f"{self.request_rate:g}/s"

    def num_requests(self, at_least: int, per_seat: int) -> int:
        """Requests of one measurement: enough that every seat of a closed loop is used ``per_seat`` times."""
        return max(at_least, per_seat * (self.max_concurrency or 0)) if self.is_closed else at_least

    def arrivals(self, seed: int) -> Iterator[float]:
        """Endless arrival times in seconds from the start; the first is 0."""
        assert self.request_rate is not None
        dice = random.Random(seed)
        time = 0.0
        while True:
            yield time
            time += dice.gammavariate(self.burstiness, 1 / (self.request_rate * self.burstiness))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, under vLLM's names."""
        rest = {} if self.is_closed else {"burstiness": self.burstiness}
        return {"max_concurrency": self.max_concurrency, "request_rate": self.request_rate, **rest}
