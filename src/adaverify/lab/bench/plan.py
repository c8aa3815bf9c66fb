"""In which order everything is measured, so that a machine that grows slower is unfair to nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.settings import Settings
from adaverify.lab.bench.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One measurement: an arm under a load of a workload, in one pass."""

    pass_number: int
    workload: Workload
    load: Load
    arm: Arm

    @property
    def key(self) -> tuple[int, str, str, str]:
        """Pass, workload, load and arm by their names."""
        return self.pass_number, self.workload.name, self.load.label, self.arm.name


def blocks(settings: Settings) -> list[list[Cell]]:
    """All measurements, in groups that are made in one go.

    With all servers up a group is one load of one workload, all arms one after the other: what is compared lies
    minutes apart. With one server at a time a group is all that one arm has to do in a pass.
    """
    found = []
    for number in range(settings.passes):
        traffic = [(workload, load) for workload in settings.workloads for load in settings.loads]
        if settings.alone:
            for arm in in_turn(settings.arms, number, 0):
                found.append([Cell(number, workload, load, arm) for workload, load in traffic])
            continue
        for position, (workload, load) in enumerate(traffic):
            arms = in_turn(settings.arms, number, position)
            found.append([Cell(number, workload, load, arm) for arm in arms])
    return found


def in_turn(items: Sequence[T], pass_number: int, position: int) -> list[T]:
    """The order of a group: turned round from pass to pass and from load to load, and rotated every second pass.

    Two passes in opposite orders cancel what grows evenly with time; the rotation gives those in the middle and those
    at the ends each other's places.

    Examples
    --------
    >>> [in_turn("abcd", number, 0) for number in range(3)]
    [['a', 'b', 'c', 'd'], ['d', 'c', 'b', 'a'], ['c', 'd', 'a', 'b']]
    """
    shift = (pass_number // 2) * (len(items) // 2) % len(items)
    order = [*items[shift:], *items[:shift]]
    return order[::-1] if (pass_number + position) % 2 else order
