"""Sums the measurements up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.settings import Settings
from adaverify.lab.bench.statistics import Ratio, Spread
from adaverify.lab.bench.summary import THROUGHPUT, USER, Comparison, Point, Summary

Cells = dict[int, dict[str, Any]]


def is_usable(cell: dict[str, Any]) -> bool:
    """Whether a measurement counts: no request failed, and the load lasted long enough to be measured."""
    return not cell["failed"] and bool(cell[THROUGHPUT]) and bool(cell[USER])


def summarize(settings: Settings, cells: Sequence[dict[str, Any]]) -> Summary:
    """Sum the measurements up; those with failed requests count as failed and nothing else."""
    usable = [cell for cell in cells if is_usable(cell)]
    found: dict[tuple[str, str, str], Cells] = defaultdict(dict)
    for cell in usable:
        found[cell["workload"], cell["load"], cell["arm"]][cell["pass"]] = cell
    workloads = tuple(workload.name for workload in settings.workloads)
    loads = tuple(load.label for load in settings.loads)
    points, fixed, gains = [], [], []
    for workload in workloads:
        of_workload = []
        for load in loads:
            here = {arm.name: found[workload, load, arm.name] for arm in settings.arms}
            baseline = here[settings.baseline]
            of_workload += [_point(workload, load, name, cells, baseline) for name, cells in here.items() if cells]
            fixed += _against_best_fixed(settings.arms, workload, load, here)
            gains += _gains(settings.arms, workload, load, here)
        points += _with_frontier(of_workload)
    return Summary(
        baseline=settings.baseline,
        arms=settings.arms,
        workloads=workloads,
        loads=loads,
        points=tuple(points),
        against_best_fixed=tuple(fixed),
        gains=tuple(gains),
        failed=sum(cell["failed"] for cell in cells),
        incomplete=len(cells) - len(usable),
        preemptions=sum(cell.get("preemptions") or 0 for cell in usable),
    )


def _point(workload: str, load: str, arm: str, cells: Cells, baseline: Cells) -> Point:
    def spread(name: str) -> Spread | None:
        return Spread.of([cell.get(name) for cell in cells.values()])

    throughput, user, other = spread(THROUGHPUT), spread(USER), spread("other_cpu_share")
    assert throughput is not None
    assert user is not None
    latencies = {name: spread(name) for name in next(iter(cells.values())) if name.endswith("_ms")}
    return Point(
        arm=arm,
        workload=workload,
        load=load,
        throughput=throughput,
        user=user,
        ratio=_ratio(cells, baseline),
        latencies={name: value for name, value in latencies.items() if value is not None},
        per_round=_per_round(cells),
        other_cpu_share=None if other is None else other.median,
    )


def _per_round(cells: Cells) -> dict[str, float]:
    rounds = sum(cell.get("rounds") or 0 for cell in cells.values())
    if not rounds:
        return {}
    found = {}
    for name in ("drafted", "admitted", "accepted"):
        counts = [sum(cell[name]) for cell in cells.values() if cell.get(name) is not None]
        if len(counts) == len(cells):
            found[name] = sum(counts) / rounds
    return found


def _ratio(cells: Cells, references: Cells) -> Ratio | None:
    def throughputs(of: Cells) -> dict[int, float]:
        return {number: cell[THROUGHPUT] for number, cell in of.items()}

    return Ratio.of(throughputs(cells), throughputs(references))


def _median(cells: Cells) -> float:
    spread = Spread.of([cell[THROUGHPUT] for cell in cells.values()])
    assert spread is not None
    return spread.median


def _compared(arm: str, reference: str, workload: str, load: str, here: dict[str, Cells]) -> list[Comparison]:
    ratio = _ratio(here[arm], here[reference])
    return [] if ratio is None else [Comparison(arm, reference, workload, load, ratio)]


def _against_best_fixed(arms: Sequence[Arm], workload: str, load: str, here: dict[str, Cells]) -> list[Comparison]:
    fixed = [arm.name for arm in arms if arm.fixed_depth is not None and here[arm.name]]
    if not fixed:
        return []
    best = max(fixed, key=lambda name: _median(here[name]))
    adaptive = [arm.name for arm in arms if arm.is_adaptive]
    return [one for name in adaptive for one in _compared(name, best, workload, load, here)]


def _gains(arms: Sequence[Arm], workload: str, load: str, here: dict[str, Cells]) -> list[Comparison]:
    pairs = [(on.name, off.name) for on in arms for off in arms if off.is_off_of(on)]
    return [one for on, off in pairs for one in _compared(on, off, workload, load, here)]


def _with_frontier(points: Sequence[Point]) -> list[Point]:
    """Mark the points that no point of another arm beats in both throughput and speed a user."""

    def beaten(point: Point) -> bool:
        return any(
            other.arm != point.arm
            and other.throughput.median > point.throughput.median
            and other.user.median > point.user.median
            for other in points
        )

    return [replace(point, on_frontier=not beaten(point)) for point in points]
