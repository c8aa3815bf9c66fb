"""A policy under observation: what its decisions are worth, and whether its predictions are true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adaverify.lab.evaluate.metrics import DEFAULT_BINS, FINE_BINS, bin_of, calibrated_ece
from adaverify.lab.replay import Rounds
from adaverify.lab.replay.policies import Decision, Policy, Stretch
from adaverify.lab.trace.trace import Floats, Ints


@dataclass(frozen=True)
class Calibration:
    """Predictions and outcomes of the labels that a policy earned, in bins of the prediction.

    Attributes
    ----------
    count, predicted, accepted : float64 [P, bins]
        Labels, and the sums of their predictions and outcomes, in each phase; bins as for
        :func:`~adaverify.lab.evaluate.metrics.calibrated_ece`.
    """

    count: Floats
    predicted: Floats
    accepted: Floats

    @classmethod
    def empty(cls, num_phases: int) -> Calibration:
        """Without labels."""
        return cls(*np.zeros((3, num_phases, DEFAULT_BINS * FINE_BINS)))

    def __add__(self, other: Calibration) -> Calibration:
        return Calibration(self.count + other.count, self.predicted + other.predicted, self.accepted + other.accepted)

    def of_phase(self, phase: int) -> dict[str, Any]:
        """Labels, bias (mean prediction less share accepted), ECE, and the ECE that noise alone gives in 95 of 100."""
        count, predicted, accepted = self.count[phase], self.predicted[phase], self.accepted[phase]
        labels = int(count.sum())
        if not labels:
            return {"labels": 0, "bias": None, "ece": None, "ece_of_calibrated": None}
        gaps = (predicted - accepted).reshape(DEFAULT_BINS, FINE_BINS).sum(axis=1)
        return {
            "labels": labels,
            "bias": float(gaps.sum() / labels),
            "ece": float(np.abs(gaps).sum() / labels),
            "ece_of_calibrated": calibrated_ece(count.astype(np.int64), predicted, DEFAULT_BINS),
        }


class Watched(Policy):
    """Does as another policy does, and keeps account of it.

    Attributes
    ----------
    tokens : list of float64 [T]
        Tokens that each step yields on average over what verification might draw: 1 a request, and the survival of
        each verified draft by its true chance. Unlike the tokens that one drawing yields, they have no noise.
    """

    def __init__(self, policy: Policy, rounds: Rounds) -> None:
        self.policy = policy
        self.name, self.lossless, self.attainable = policy.name, policy.lossless, policy.attainable
        self.steps_ahead = policy.steps_ahead
        survival = rounds.blocks.overlap.astype(np.float64).cumprod(axis=1)
        self._yield = np.concatenate([np.zeros((len(rounds), 1)), survival.cumsum(axis=1)], axis=1)
        self._num_phases = len(rounds.datasets)
        self.tokens: list[Floats] = []
        self.calibration = Calibration.empty(self._num_phases)

    def decide(self, stretch: Stretch) -> Decision:
        """As the other decides."""
        return self.policy.decide(stretch)

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        """Take note, and let the other learn."""
        gained = np.where(stretch.active, self._yield[stretch.rounds, decision.admitted], 0.0)
        self.tokens.append(stretch.num_requests + gained.sum(axis=1))
        self.calibration = self.calibration + self._calibration(stretch, decision, accepted)
        self.policy.observe(stretch, decision, accepted)

    def _calibration(self, stretch: Stretch, decision: Decision, accepted: Ints) -> Calibration:
        assert decision.predictions is not None
        depth = np.arange(decision.predictions.shape[-1])
        labelled = (depth <= accepted[..., None]) & (depth < decision.admitted[..., None])
        labelled &= stretch.telling[..., None] & np.isfinite(decision.predictions)
        chances = decision.predictions[labelled].astype(np.float64)
        outcomes = (depth < accepted[..., None])[labelled]
        bins = DEFAULT_BINS * FINE_BINS
        phase = np.broadcast_to(stretch.blocks.dataset[stretch.rounds][..., None], labelled.shape)[labelled]
        place, size = phase * bins + bin_of(chances, bins), self._num_phases * bins
        sums = (np.bincount(place, weights, size) for weights in (None, chances, outcomes))
        return Calibration(*(total.reshape(-1, bins).astype(np.float64) for total in sums))
