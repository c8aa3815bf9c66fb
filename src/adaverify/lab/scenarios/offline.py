"""What an estimator is measured by: the oracle, and the best fixed K + 1 coefficients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from adaverify.lab.evaluate.fit import AcceptanceLaw, LawFitter
from adaverify.lab.replay import Rounds
from adaverify.lab.replay.policies import Ranked, Recorded, Setting
from adaverify.lab.scenarios.scenario import Scenario
from adaverify.lab.trace.trace import Bools, Floats

_MAX_LABELS = 60_000


def fit_phases(rounds: Rounds, scenario: Scenario) -> list[AcceptanceLaw]:
    """The law of each phase by scikit-learn: K + 1 coefficients, fitted to its telling labels, had all been verified.

    A phase that is not measured has no fit of its own, but that of the next one that is.
    """
    fitter = LawFitter(rounds.num_speculative_tokens, max_labels=_MAX_LABELS)
    laws: list[AcceptanceLaw] = []
    for number in reversed(range(len(scenario.phases))):
        if scenario.phases[number].measured:
            row, depth = np.nonzero(_labelled(rounds, number))
            features = rounds.blocks.logit_q_max[row, depth].astype(np.float64)
            laws.append(fitter.fit(features, depth, depth < rounds.num_accepted[row]))
        else:
            laws.append(laws[-1])
    return laws[::-1]


def with_fit(rounds: Rounds, laws: list[AcceptanceLaw]) -> Rounds:
    """The same rounds with a confidence head that knows ``laws``, one a phase."""
    phase = rounds.blocks.dataset
    slopes, intercepts = (np.array([getattr(law, name) for law in laws]) for name in ("slopes", "intercepts"))
    log_odds = slopes[phase] * rounds.blocks.logit_q_max + intercepts[phase]
    return replace(rounds, blocks=replace(rounds.blocks, head_logit=log_odds.astype(np.float32)))


def offline(setting: Setting) -> Ranked:
    """Adaptive verification by the fit, for rounds :func:`with_fit`."""
    chances = 1 / (1 + np.exp(-setting.rounds.blocks.head_logit.astype(np.float64)))
    return Ranked("offline", Recorded("head_logit", torch.sigmoid, _by_position(setting.rounds, chances)), setting)


def oracle(setting: Setting) -> Ranked:
    """Adaptive verification by the chances that the labels were drawn by: what no server knows."""
    new = _by_position(setting.rounds, setting.rounds.blocks.overlap)
    return Ranked("oracle", Recorded("overlap", new=new), setting, attainable=False)


def _by_position(rounds: Rounds, chances: Floats) -> torch.Tensor:
    """Mean chance at each position, [K]: what a request counts as of which nothing is known."""
    known = np.isfinite(rounds.blocks.logit_q_max)
    return torch.from_numpy(chances.mean(axis=0, where=known)).float()


def _labelled(rounds: Rounds, phase: int) -> Bools:
    """Telling labels of one phase, had everything been verified, [M, K]."""
    depth = np.arange(rounds.num_speculative_tokens)
    own = rounds.blocks.telling & (rounds.blocks.dataset == phase)
    reached = (depth <= rounds.num_accepted[:, None]) & (depth < rounds.num_verified[:, None])
    return np.asarray(reached & own[:, None])
