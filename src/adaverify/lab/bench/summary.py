"""What a comparison says: points over passes, ratios in pairs, gains, and who is on the frontier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.statistics import Ratio, Spread

THROUGHPUT = "steady_output_throughput"
USER = "tokens_per_second_per_user"


@dataclass(frozen=True)
class Point:
    """An arm under a load of a workload, over passes.

    Attributes
    ----------
    arm, workload, load : str
    throughput, user : Spread
        Output tokens per second: of all users while the load lasted, and of one.
    ratio : Ratio, optional
        Of throughputs, to the baseline.
    latencies : dict of str to Spread
        Milliseconds, by vLLM's names.
    per_round : dict of str to float
        Drafts ``drafted``, ``admitted`` and ``accepted`` in a request-round, over all passes; what the server tells.
    other_cpu_share : float, optional
        Median share of the machine that neither server nor client took.
    on_frontier : bool
        No point of another arm, at any load of the workload, is better in both throughput and speed a user.
    """

    arm: str
    workload: str
    load: str
    throughput: Spread
    user: Spread
    ratio: Ratio | None
    latencies: dict[str, Spread]
    per_round: dict[str, float]
    other_cpu_share: float | None
    on_frontier: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "arm": self.arm,
            "workload": self.workload,
            "load": self.load,
            THROUGHPUT: self.throughput.to_dict(),
            USER: self.user.to_dict(),
            "ratio_to_baseline": self.ratio and self.ratio.to_dict(),
            "on_frontier": self.on_frontier,
            **{name: spread.to_dict() for name, spread in self.latencies.items()},
            **{f"{name}_per_round": value for name, value in self.per_round.items()},
            "other_cpu_share": self.other_cpu_share,
        }


@dataclass(frozen=True)
class Comparison:
    """An adaptive arm against another under one load.

    Attributes
    ----------
    arm, reference : str
    workload, load : str
    ratio : Ratio
        Of throughputs, in pairs.
    """

    arm: str
    reference: str
    workload: str
    load: str
    ratio: Ratio

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "ratio": self.ratio.to_dict()}


@dataclass(frozen=True)
class Summary:
    """All that follows from the measurements.

    Attributes
    ----------
    baseline : str
    arms, workloads, loads : tuple of str
        In the order of the command.
    points : tuple of Point
    against_best_fixed : tuple of Comparison
        Each adaptive arm against the fixed depth that is best at that load, in hindsight: the one with the highest
        median throughput.
    gains : tuple of Comparison
        Each adaptive arm against itself with adaptive verification off.
    failed : int
        Requests.
    incomplete : int
        Measurements that failed requests keep out of everything else.
    preemptions : int
        Requests that a server sent back to waiting, since its KV pool was full.
    """

    baseline: str
    arms: tuple[Arm, ...]
    workloads: tuple[str, ...]
    loads: tuple[str, ...]
    points: tuple[Point, ...]
    against_best_fixed: tuple[Comparison, ...]
    gains: tuple[Comparison, ...]
    failed: int
    incomplete: int
    preemptions: int

    def of_workload(self, workload: str) -> list[Point]:
        """The points of one workload."""
        return [point for point in self.points if point.workload == workload]

    def frontier_counts(self, workload: str) -> dict[str, tuple[int, int]]:
        """For each arm the loads at which it is on the frontier, and all its loads."""
        counts: dict[str, tuple[int, int]] = {}
        for point in self.of_workload(workload):
            on, total = counts.get(point.arm, (0, 0))
            counts[point.arm] = (on + point.on_frontier, total + 1)
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "baseline": self.baseline,
            "points": [point.to_dict() for point in self.points],
            "against_best_fixed": [one.to_dict() for one in self.against_best_fixed],
            "gains": [one.to_dict() for one in self.gains],
            "frontier": {name: self.frontier_counts(name) for name in self.workloads},
            "failed": self.failed,
            "incomplete": self.incomplete,
            "preemptions": self.preemptions,
        }
