"""Predictions against what ``adaverify bench`` measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import median
from typing import Any

from adaverify.errors import ConfigError
from adaverify.lab.bench.statistics import Ratio
from adaverify.lab.bench.summarize import is_usable
from adaverify.lab.bench.summary import THROUGHPUT
from adaverify.lab.plan.advice import TIE
from adaverify.lab.plan.lengths import Lengths
from adaverify.lab.plan.plan import Plan
from adaverify.lab.plan.prediction import AV, fixed_arm

Rates = Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class Measured:
    """One workload of a bench: what a plan can be held against.

    Attributes
    ----------
    workload : str
    rates : dict of (arm, concurrency) to float
        Median output tokens per second while the load lasted, by the names of a plan's arms.
    lengths : Lengths
        Of the requests that were answered.
    passes : dict of (arm, concurrency) to dict of int to float
        The same rates by pass.
    """

    workload: str
    rates: dict[tuple[str, int], float]
    lengths: Lengths
    passes: dict[tuple[str, int], dict[int, float]]

    @property
    def loads(self) -> list[int]:
        """Concurrencies, rising."""
        return sorted({load for _, load in self.rates})

    def tells_apart(self, slow: str, fast: str, load: int) -> bool:
        """Whether ``fast`` was faster by more than 2% and, where more than one pass pairs up, beyond their scatter."""
        ratio = Ratio.of(self.passes.get((fast, load), {}), self.passes.get((slow, load), {}))
        if ratio is None or ratio.low is None:
            return self.rates[fast, load] > (1 + TIE) * self.rates[slow, load]
        return ratio.value > 1 + TIE and ratio.low > 1


def read_measured(file: Path, num_speculative_tokens: int, workload: str | None = None) -> Measured:
    """Read ``bench.json``, or the folder it lies in.

    Parameters
    ----------
    file : Path
    num_speculative_tokens : int
        K of the plan; arms that draft deeper are left out, and adaptive ones that are not as deep.
    workload : str, optional
        Needed where there are several.

    Raises
    ------
    ConfigError
        The file holds no results, none of that workload, or none that a plan speaks of.
    """
    file = file / "bench.json" if file.is_dir() else file
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        points, arms, cells = document["summary"]["points"], document["settings"]["arms"], document["cells"]
        names = list(dict.fromkeys(point["workload"] for point in points))
        if workload is None and len(names) != 1:
            raise ConfigError(f"{file} holds several workloads or none; choose one with --workload: {', '.join(names)}")
        name = names[0] if workload is None else workload
        ours = _arms(arms, num_speculative_tokens)
        rates: dict[tuple[str, int], float] = {}
        for point in points:
            if point["workload"] == name and point["arm"] in ours and point["load"].isdecimal():
                key = ours[point["arm"]], int(point["load"])
                rates[key] = point[THROUGHPUT]["median"]
        cells = [cell for cell in cells if cell["workload"] == name]
        lengths = _lengths(cells) if rates else Lengths(0, 1)
        passes = _passes(cells, ours)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{file}: no results of `adaverify bench` ({type(error).__name__}: {error}); give its bench.json, or run "
            "the bench to its end"
        ) from error
    if not rates:
        raise ConfigError(
            f"{file} has no arm of the plan under a closed load of {name!r}; measured were "
            f"{', '.join(arm['name'] for arm in arms)} on {', '.join(names)}"
        )
    return Measured(name, rates, lengths, passes)


@dataclass(frozen=True)
class Ranking:
    """The order of the arms at one load.

    Attributes
    ----------
    pairs, right : int
        Pairs of arms that the measurement tells apart; those of them that were predicted in that order.
    best, predicted_best : str
    regret : float
        Share of the best measured rate that is lost by the arm predicted to be fastest.
    """

    pairs: int
    right: int
    best: str
    predicted_best: str
    regret: float

    @property
    def is_right(self) -> bool:
        """Whether every pair is, and there is one."""
        return self.right == self.pairs > 0

    @classmethod
    def of(cls, predicted: Mapping[str, float], measured: Measured, load: int) -> Ranking:
        """Of rates by arm, predicted for some of the arms that were measured at ``load``."""
        rates = {arm: measured.rates[arm, load] for arm in predicted}
        apart = [(slow, fast) for slow, fast in permutations(rates, 2) if measured.tells_apart(slow, fast, load)]
        best, choice = (max(by_arm, key=by_arm.__getitem__) for by_arm in (rates, predicted))
        right = sum(predicted[fast] > predicted[slow] for slow, fast in apart)
        return cls(len(apart), right, best, choice, 1 - rates[choice] / rates[best])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "is_right": self.is_right}


@dataclass(frozen=True)
class Check:
    """A plan held against a measurement.

    Attributes
    ----------
    workload : str
    ratios : dict of (arm, concurrency) to float
        Predicted over measured tokens per second.
    rankings : dict of int to Ranking
        By concurrency.
    """

    workload: str
    ratios: dict[tuple[str, int], float]
    rankings: dict[int, Ranking]

    @property
    def median_error(self) -> float:
        """Median of ``|predicted / measured - 1|``."""
        return median(abs(ratio - 1) for ratio in self.ratios.values())

    @property
    def median_ratio(self) -> float:
        """Above 1 the plan promises too much throughout."""
        return median(self.ratios.values())

    @property
    def num_right(self) -> int:
        """Loads at which the arms are ranked right."""
        return sum(ranking.is_right for ranking in self.rankings.values())

    @property
    def num_ranked(self) -> int:
        """Loads at which the measurement tells any arms apart."""
        return sum(ranking.pairs > 0 for ranking in self.rankings.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "workload": self.workload,
            "median_absolute_error": self.median_error,
            "median_ratio": self.median_ratio,
            "rankings_right": self.num_right,
            "rankings_decided": self.num_ranked,
            "rankings": {str(load): ranking.to_dict() for load, ranking in self.rankings.items()},
            "predicted_over_measured": [
                {"arm": arm, "max_concurrency": load, "ratio": ratio} for (arm, load), ratio in self.ratios.items()
            ],
        }


def check(plan: Plan, measured: Measured) -> Check:
    """Compare what both have.

    Raises
    ------
    ConfigError
        They share no load.
    """
    both = [key for key in plan.rates if key in measured.rates]
    if not both:
        raise ConfigError(
            f"the plan has the loads {_listed(plan.loads)}, measured were {_listed(measured.loads)}; leave out "
            "--max-concurrency"
        )
    ratios = {key: plan.rates[key] / measured.rates[key] for key in both}
    loads = dict.fromkeys(load for _, load in both)
    rankings = {load: Ranking.of(_at(plan.rates, load, both), measured, load) for load in loads}
    return Check(measured.workload, ratios, rankings)


def _at(rates: Rates, load: int, keys: list[tuple[str, int]]) -> dict[str, float]:
    return {arm: rates[arm, at] for arm, at in keys if at == load}


def _arms(arms: list[dict[str, Any]], num_speculative_tokens: int) -> dict[str, str]:
    """The plan's name of each of the bench's arms that it speaks of: the first of several of one name."""
    found: dict[str, str] = {}
    for arm in arms:
        name = _plan_name(arm, num_speculative_tokens)
        if name is not None and name not in found.values():
            found[arm["name"]] = name
    return found


def _plan_name(arm: dict[str, Any], num_speculative_tokens: int) -> str | None:
    """What the plan calls this arm; None if it does not speak of it."""
    if arm["url"] or arm["command"]:
        return None
    config = arm["speculative_config"] or {"num_speculative_tokens": 0, "enable_adaptive_verification": False}
    depth = config["num_speculative_tokens"]
    if config["enable_adaptive_verification"]:
        return AV if depth == num_speculative_tokens else None
    return fixed_arm(depth) if depth <= num_speculative_tokens else None


def _passes(cells: list[dict[str, Any]], names: dict[str, str]) -> dict[tuple[str, int], dict[int, float]]:
    """Rates of closed loads by pass."""
    passes: dict[tuple[str, int], dict[int, float]] = {}
    for cell in cells:
        if is_usable(cell) and cell["arm"] in names and cell["load"].isdecimal():
            by_pass = passes.setdefault((names[cell["arm"]], int(cell["load"])), {})
            by_pass[cell["pass"]] = cell[THROUGHPUT]
    return passes


def _lengths(cells: list[dict[str, Any]]) -> Lengths:
    completed = sum(cell["completed"] for cell in cells)
    totals = (sum(cell[key] for cell in cells) / completed for key in ("total_input_tokens", "total_output_tokens"))
    return Lengths(*totals)


def _listed(loads: list[int]) -> str:
    return ", ".join(map(str, loads))
