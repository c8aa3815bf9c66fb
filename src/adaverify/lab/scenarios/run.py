"""Plays a scenario: the oracle, the offline fit, and every estimator, over the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from adaverify.lab.replay import Prices, replay
from adaverify.lab.replay.policies import ESTIMATORS, Policy, Setting, make_policy
from adaverify.lab.scenarios.offline import fit_phases, offline, oracle, with_fit
from adaverify.lab.scenarios.outcome import Course, Outcome
from adaverify.lab.scenarios.play import Play, make_play
from adaverify.lab.scenarios.scenario import INTERVAL, Scenario
from adaverify.lab.scenarios.watched import Watched
from adaverify.lab.trace.trace import Floats


def run(
    scenario: Scenario,
    seeds: Sequence[int] = (0, 1, 2),
    modes: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda policy: None,
) -> Outcome:
    """Play a scenario once for each seed.

    Parameters
    ----------
    scenario : Scenario
    seeds : sequence of int
    modes : sequence of str, optional
        Estimators; all that are registered by default.
    progress : callable
        Told each policy before it is played.
    """
    makers: dict[str, Callable[[Setting], Policy]] = {"oracle": oracle, "offline": offline}
    makers |= {mode: _maker(mode) for mode in (ESTIMATORS if modes is None else modes)}
    courses: dict[str, list[Course]] = {name: [] for name in makers}
    for seed in seeds:
        play = make_play(scenario, seed)
        play = replace(play, rounds=with_fit(play.rounds, fit_phases(play.rounds, scenario)))
        for name, make in makers.items():
            progress(name)
            courses[name].append(_course(name, make, scenario, play))
    first, second, *others = (_together(parts) for parts in courses.values())
    return Outcome(scenario, tuple(seeds), first, second, tuple(others))


def _maker(mode: str) -> Callable[[Setting], Policy]:
    return lambda setting: make_policy(f"estimator:{mode}", setting)


def _course(name: str, make: Callable[[Setting], Policy], scenario: Scenario, play: Play) -> Course:
    """One policy over one drawing; the oracle knows the true costs, too."""
    believed = scenario.costs if scenario.believed is None or name == "oracle" else scenario.believed
    seats = play.traffic.num_seats
    policy = Watched(make(Setting(play.rounds, Prices.of(believed, play.rounds, seats), seats)), play.rounds)
    steps = replay(play.rounds, policy, scenario.costs, traffic=play.traffic).steps
    tokens, cost = np.concatenate(policy.tokens), steps.draft_ms + steps.verify_ms
    return Course(name, _by_interval(tokens), _by_interval(cost), policy.calibration)


def _by_interval(values: Floats) -> Floats:
    return values.reshape(1, -1, INTERVAL).sum(axis=2)


def _together(parts: Sequence[Course]) -> Course:
    """The drawings of one policy."""
    tokens, cost = (np.concatenate([getattr(p, name) for p in parts]) for name in ("tokens", "milliseconds"))
    return Course(parts[0].policy, tokens, cost, reduce(add, (part.calibration for part in parts)))
