"""Several policies over the same traffic, measured by the best fixed depth and by the clairvoyant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adaverify.lab.replay.policies import default_policies
from adaverify.lab.replay.result import ReplayResult
from adaverify.lab.replay.rounds import Rounds
from adaverify.lab.replay.run import replay
from adaverify.lab.replay.traffic import Traffic
from adaverify.policy.cost import CostTable


@dataclass(frozen=True)
class Comparison:
    """Policies over one traffic.

    Attributes
    ----------
    concurrency : int
    requests_per_step : float
        Seats taken on average: fewer than ``concurrency`` where the batch drains at the end.
    results : tuple of ReplayResult
        Those that were asked for.
    best_fixed, clairvoyant : ReplayResult
        What they are measured by: the best of all fixed depths in hindsight, and the upper bound.
    """

    concurrency: int
    requests_per_step: float
    results: tuple[ReplayResult, ...]
    best_fixed: ReplayResult
    clairvoyant: ReplayResult

    @property
    def best(self) -> ReplayResult | None:
        """The fastest that a server can run and that leaves the text unbiased."""
        choice = [result for result in self.results if result.attainable and result.lossless]
        return max(choice, key=lambda result: result.tokens_per_second, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        fixed, bound = self.best_fixed.tokens_per_second, self.clairvoyant.tokens_per_second
        return {
            "concurrency": self.concurrency,
            "requests_per_step": self.requests_per_step,
            "best_fixed": self.best_fixed.policy,
            "best": self.best and self.best.policy,
            "policies": [
                {
                    **result.to_dict(),
                    "relative_to_best_fixed": result.tokens_per_second / fixed,
                    "relative_to_clairvoyant": result.tokens_per_second / bound,
                }
                for result in self.results
            ],
        }


def compare(
    rounds: Rounds,
    costs: CostTable,
    traffic: Traffic,
    policies: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda policy: None,
) -> Comparison:
    """Replay ``policies``, by default all that need no argument, over one traffic.

    Parameters
    ----------
    rounds : Rounds
    costs : CostTable
    traffic : Traffic
    policies : sequence of str, optional
    progress : callable
        Told each policy before it is played.

    Raises
    ------
    ConfigError, TraceError
        As :func:`~adaverify.lab.replay.run.replay`.
    """
    done: dict[str, ReplayResult] = {}

    def play(policy: str) -> ReplayResult:
        if policy not in done:
            progress(policy)
            done[policy] = replay(rounds, policy, costs, traffic=traffic)
        return done[policy]

    results = tuple(play(policy) for policy in dict.fromkeys(policies or default_policies(rounds)))
    fixed = [play(f"fixed:{depth}") for depth in range(rounds.num_speculative_tokens + 1)]
    return Comparison(
        concurrency=traffic.num_seats,
        requests_per_step=traffic.num_rounds / traffic.num_steps,
        results=results,
        best_fixed=max(fixed, key=lambda result: result.tokens_per_second),
        clairvoyant=play("clairvoyant"),
    )
