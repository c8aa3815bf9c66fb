"""Draws a scenario: rounds whose true chances are known, and the seats that play them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.replay import Blocks, Rounds, Traffic
from adaverify.lab.scenarios.law import CLIFF, over_time
from adaverify.lab.scenarios.scenario import Scenario
from adaverify.lab.trace import RunInfo
from adaverify.lab.trace.trace import Bools, Floats, Ints
from adaverify.policy.features import MAX_LOG_ODDS

# Kinds of text that requests differ by: what they add to the intercept and to the mean of the feature.
_DATASETS = np.array([(0.4, 0.6), (0.1, 0.1), (-0.5, -0.7)])
_OWN_DEVIATION = 0.3


@dataclass(frozen=True)
class Play:
    """One drawing of a scenario.

    Attributes
    ----------
    rounds : Rounds
        Every round is played once. ``dataset`` is the phase, ``overlap`` the chance that the labels were drawn by.
    traffic : Traffic
    """

    rounds: Rounds
    traffic: Traffic


def make_play(scenario: Scenario, seed: int) -> Play:
    """Draw requests, features, chances and outcomes."""
    rng = np.random.default_rng(seed)
    traffic = _traffic(scenario, rng)
    # Rounds are numbered seat by seat, so this is their order.
    step = np.nonzero(traffic.rounds.T >= 0)[1]
    request = traffic.started.T[traffic.rounds.T >= 0].cumsum() - 1
    tenant = rng.choice(len(scenario.tenants), request[-1] + 1, p=[t.share for t in scenario.tenants])[request]
    features, chances = _drafts(scenario, rng, step, request, tenant)
    accepted = (rng.random(chances.shape) < chances).cumprod(axis=1).sum(axis=1)
    usable = _break(features, rng, _of(scenario, "broken")[tenant])
    phase = np.searchsorted(scenario.first_steps, step, side="right") - 1
    greedy, telling = (_of(scenario, name)[tenant] for name in ("greedy", "telling"))
    blocks = _blocks(features, chances, request, phase, greedy, telling)
    names = tuple(phase.name for phase in scenario.phases)
    return Play(Rounds((_info(scenario),), names, blocks, usable, np.minimum(accepted, usable)), traffic)


def _of(scenario: Scenario, name: str) -> NDArray[Any]:
    """One attribute of every tenant."""
    return np.array([getattr(tenant, name) for tenant in scenario.tenants])


def _traffic(scenario: Scenario, rng: np.random.Generator) -> Traffic:
    """Requests of geometric length in every open seat."""
    seats = np.repeat([p.seats for p in scenario.phases], [p.num_steps for p in scenario.phases])
    active = np.arange(scenario.num_seats) < seats[:, None]
    was_active = np.concatenate([np.zeros_like(active[:1]), active[:-1]])
    started = active & (~was_active | (rng.random(active.shape) < 1 / scenario.mean_rounds))
    number = active.T.cumsum().reshape(active.T.shape).T - 1
    return Traffic(np.where(active, number, -1), started)


def _drafts(
    scenario: Scenario, rng: np.random.Generator, step: Ints, request: Ints, tenant: Ints
) -> tuple[Floats, Floats]:
    """Features and chances of every draft, float64 [M, K] each."""
    ways = [over_time(p.law, p.until or p.law, p.num_steps) for p in scenario.phases]
    law = {name: np.concatenate([way[name] for way in ways])[step, None] for name in ways[0]}
    depth = np.arange(scenario.num_speculative_tokens)
    num_requests = int(request[-1]) + 1
    intercept, mean = _DATASETS[rng.integers(len(_DATASETS), size=num_requests)][request].T
    intercept = intercept + rng.normal(0, _OWN_DEVIATION, num_requests)[request] + _of(scenario, "intercept")[tenant]
    noise = rng.normal(size=(len(step), len(depth)))
    features = law["mean"] + mean[:, None] + law["mean_deeper"] * depth + law["deviation"] * noise
    features = features.clip(-MAX_LOG_ODDS, MAX_LOG_ODDS)
    slope = law["slope"] + _of(scenario, "slope")[tenant, None]
    by_position = law["intercept"] + law["deeper"] * depth + law["cliff"] * (depth >= CLIFF)
    log_odds = slope * features + by_position + intercept[:, None]
    return features, np.where(np.isnan(law["chance"]), 1 / (1 + np.exp(-log_odds)), law["chance"])


def _break(features: Floats, rng: np.random.Generator, share: Floats) -> Ints:
    """Put a value that is not finite into this share of the rounds; drafts that can be verified, int64 [M]."""
    M, K = features.shape
    broken = np.flatnonzero(rng.random(M) < share)
    depth = rng.integers(K, size=len(broken))
    features[broken, depth] = rng.choice([np.nan, np.inf, -np.inf], size=len(broken))
    usable = np.full(M, K)
    usable[broken] = depth
    return usable


def _blocks(features: Floats, chances: Floats, request: Ints, phase: Ints, greedy: Bools, telling: Bools) -> Blocks:
    M, K = features.shape
    with np.errstate(over="ignore"):
        q_max = 1 / (1 + np.exp(-features))
    unknown = np.broadcast_to(np.float32(np.nan), (M, K))
    return Blocks(
        run=np.zeros(M, np.int16),
        request=request,
        dataset=phase,
        temperature=np.where(greedy, 0, 1).astype(np.float32),
        telling=telling,
        context=np.zeros(M, np.int32),
        num_drafts=np.full(M, K),
        logit_q_max=features.astype(np.float32),
        q_max=q_max.astype(np.float32),
        q_sampled=unknown,
        entropy=unknown,
        margin=unknown,
        head_logit=unknown,
        overlap=chances.astype(np.float32),
    )


def _info(scenario: Scenario) -> RunInfo:
    return RunInfo(
        run=scenario.name,
        target="known law",
        drafter="known law",
        method="dflash" if scenario.knows_q_before_draw else "dspark",
        num_speculative_tokens=scenario.num_speculative_tokens,
        max_num_seqs=scenario.num_seats,
        knows_q_before_draw=scenario.knows_q_before_draw,
        drafts_in_parallel=True,
        trimmed=False,
        costs=scenario.costs.to_dict(),
    )
