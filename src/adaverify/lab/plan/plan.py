"""Every arm at every load, and which is fastest where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import geometric_mean
from typing import Any

from adaverify.lab.plan.lengths import Lengths
from adaverify.lab.plan.prediction import AV, Prediction, fixed_arm
from adaverify.lab.plan.tables import SourcedCosts
from adaverify.lab.replay import Rounds, Traffic, replay

# rounds played at each load: the trace once if it is not longer than this, and so many steps at least
MOST_ROUNDS, LEAST_STEPS = 4096, 256


@dataclass(frozen=True)
class Plan:
    """Predictions for one drafter.

    Attributes
    ----------
    predictions : tuple of Prediction
        By load, then by arm: ``k0`` to ``kK``, then ``av``.
    lengths : Lengths
    costs : SourcedCosts
    """

    predictions: tuple[Prediction, ...]
    lengths: Lengths
    costs: SourcedCosts

    @cached_property
    def rates(self) -> dict[tuple[str, int], float]:
        """Tokens per second by arm and concurrency."""
        return {(one.arm, one.concurrency): one.tokens_per_second for one in self.predictions}

    @property
    def arms(self) -> list[str]:
        """In the order of the predictions."""
        return list(dict.fromkeys(one.arm for one in self.predictions))

    @property
    def fixed(self) -> list[str]:
        """The arms without adaptive verification."""
        return [arm for arm in self.arms if arm != AV]

    @property
    def loads(self) -> list[int]:
        """Concurrencies."""
        return list(dict.fromkeys(one.concurrency for one in self.predictions))

    def best_fixed(self, load: int) -> str:
        """The fastest fixed depth at a load."""
        return max(self.fixed, key=lambda arm: self.rates[arm, load])

    def relative(self, arm: str, load: int) -> float:
        """Rate of an arm by that of the best fixed depth at the load."""
        return self.rates[arm, load] / self.rates[self.best_fixed(load), load]

    @property
    def one_fixed(self) -> str:
        """The depth to set where it cannot change with the load: best in the geometric mean over all."""
        return max(self.fixed, key=lambda arm: geometric_mean(self.relative(arm, load) for load in self.loads))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "input_len": self.lengths.input_len,
            "output_len": self.lengths.output_len,
            "costs": self.costs.to_dict(),
            "predictions": [one.to_dict() for one in self.predictions],
            "best_fixed": {str(load): self.best_fixed(load) for load in self.loads},
            "av_relative_to_best_fixed": {str(load): self.relative(AV, load) for load in self.loads},
            "one_fixed": self.one_fixed,
        }


def make_plan(
    rounds: Rounds,
    costs: SourcedCosts,
    loads: Sequence[int],
    lengths: Lengths,
    num_rounds: int | None = None,
    seed: int = 0,
    progress: Callable[[int, str], None] = lambda load, arm: None,
) -> Plan:
    """Predict every arm at every load.

    Parameters
    ----------
    rounds : Rounds
    costs : SourcedCosts
    loads : sequence of int
        Requests at once.
    lengths : Lengths
        Of the requests to be served.
    num_rounds : int, optional
        Played at each load, requests again if need be. By default the trace once, at most 4096 rounds, and 256 steps
        at least.
    seed : int
        Shuffles the requests.
    progress : callable
        Told each load and arm before it is played.

    Raises
    ------
    ConfigError, TraceError
        As :func:`~adaverify.lab.replay.run.replay`.
    """
    policies = {fixed_arm(depth): f"fixed:{depth}" for depth in range(rounds.num_speculative_tokens + 1)} | {AV: "av"}
    table = costs.for_drafter(rounds.num_speculative_tokens, rounds.info.drafts_in_parallel)
    predictions = []
    for load in dict.fromkeys(loads):
        count = num_rounds or max(min(len(rounds), MOST_ROUNDS), LEAST_STEPS * load)
        traffic = Traffic.build(rounds, load, seed, count)
        traffic = replace(traffic, prompts=lengths.prompts(rounds, traffic, seed))
        for arm, policy in policies.items():
            progress(load, arm)
            result = replay(rounds, policy, table, traffic=traffic)
            predictions.append(Prediction.of(arm, result, table, lengths))
    return Plan(tuple(predictions), lengths, costs)
