"""Everything that is evaluated of a trace: the scores, the coefficients, the claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaverify.lab.evaluate import fit, peer
from adaverify.lab.evaluate.bootstrap import CONFIDENCE, MIN_BLOCKS, REPLICATES, Estimate, Resamples
from adaverify.lab.evaluate.claims import TRIMMED, Measurements, all_claims, judged_parts
from adaverify.lab.evaluate.coefficients import Coefficients
from adaverify.lab.evaluate.judging import Claim
from adaverify.lab.evaluate.measure import difference, measure
from adaverify.lab.evaluate.metrics import DEFAULT_BINS
from adaverify.lab.evaluate.parts import Layout, Part, pairs_behind
from adaverify.lab.evaluate.prequential import EstimatorFactory
from adaverify.lab.evaluate.refits import RefitPath, refit_paths
from adaverify.lab.evaluate.sample import Pair, Sample
from adaverify.lab.evaluate.scores import LOGIT_Q_MAX, OWN_SLOPES, RAW_Q_MAX, Score, all_scores
from adaverify.lab.trace import Trace


@dataclass(frozen=True)
class ScoreInfo:
    """A score without its values; see :class:`~adaverify.lab.evaluate.scores.Score`."""

    name: str
    lossless: bool
    how: str
    note: str

    @classmethod
    def of(cls, score: Score) -> ScoreInfo:
        """What is to be said of a score."""
        return cls(score.name, score.lossless, score.how, score.note)


@dataclass(frozen=True)
class Sharing:
    """What one slope for all positions costs a pair against a slope each, on the requests it is judged by."""

    drafter: str
    sampling: str
    auc: Estimate
    log_loss: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {**vars(self), "auc": vars(self.auc), "log_loss": vars(self.log_loss)}


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` finds.

    Attributes
    ----------
    settings, counts : dict
        How it was measured; how many drafts, labels and requests there were.
    runs : list of dict
        Run, target, drafter, method, K and labels of each.
    scores : list of ScoreInfo
        Those with values, in the order of the tables.
    absent : dict of str to str
        Scores without values, and why.
    measurements : dict of str to dict of Part to Measured
        By score and part of the sample; a part without labels is not there.
    sharing : list of Sharing
        AUC lost and log-loss added by one slope.
    coefficients : Coefficients
    refits : list of RefitPath
    claims : list of Claim
    pairs : tuple of Pair
    """

    settings: dict[str, Any]
    counts: dict[str, int]
    runs: list[dict[str, Any]]
    scores: list[ScoreInfo]
    absent: dict[str, str]
    measurements: Measurements
    sharing: list[Sharing]
    coefficients: Coefficients
    refits: list[RefitPath]
    claims: list[Claim]
    pairs: tuple[Pair, ...]

    @property
    def parts(self) -> list[Part]:
        """Parts of the sample that have labels: raw q_max has a value for every draft."""
        return list(self.measurements[RAW_Q_MAX])

    @property
    def warnings(self) -> list[str]:
        """What a reader has to know before the numbers."""
        return [f"{pair.label}: {TRIMMED}. Its claims are left undecided." for pair in self.pairs if pair.trimmed]

    def is_lossless(self, score: str, drafter: str) -> bool:
        """Whether a drafter's drafts may be trimmed by a score: by any of them under coupled verification."""
        lossless = next(info.lossless for info in self.scores if info.name == score)
        return lossless or all(pair.coupled for pair in pairs_behind(self.pairs, drafter))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON; None where a number is undefined."""
        return {
            "warnings": self.warnings,
            "settings": self.settings,
            "counts": self.counts,
            "runs": self.runs,
            "scores": [vars(score) for score in self.scores],
            "absent": self.absent,
            "measurements": [
                {"score": name, **vars(part), "lossless": self.is_lossless(name, part.drafter), **measured.to_dict()}
                for name, parts in self.measurements.items()
                for part, measured in parts.items()
            ],
            "shared_slope": [sharing.to_dict() for sharing in self.sharing],
            "coefficients": self.coefficients.to_dict(),
            "refits": [path.to_dict() for path in self.refits],
            "claims": [claim.to_dict() for claim in self.claims],
        }


def evaluate(
    trace: Trace,
    bins: int = DEFAULT_BINS,
    estimators: dict[str, EstimatorFactory] | None = None,
    replicates: int = REPLICATES,
    on_score: Callable[[str], None] = lambda name: None,
) -> Evaluation:
    """Score every predictor of acceptance on a trace, fit the coefficients and judge the paper's claims.

    Parameters
    ----------
    trace : Trace
    bins : int
        Of the ECE.
    estimators : dict of str to callable, optional
        Online estimators to be scored besides the paper's, each a factory that takes a run's description.
    replicates : int
        Resamples of the requests.
    on_score : callable
        Told the name of every score when it is to be measured.

    Raises
    ------
    TraceError
        No draft has a label.
    """
    sample = Sample.of(trace)
    layout, resamples = Layout(sample), Resamples.draw(sample.num_blocks, replicates)
    infos: list[ScoreInfo] = []
    absent: dict[str, str] = {}
    measurements: Measurements = {}
    for score in all_scores(trace, sample, estimators):
        if score.is_absent:
            absent[score.name] = score.absence
            continue
        on_score(score.name)
        infos.append(ScoreInfo.of(score))
        measurements[score.name] = measure(score, sample, layout, resamples, bins)
    on_score("coefficients")
    coefficients = Coefficients(sample, resamples)
    return Evaluation(
        settings=_settings(bins, replicates),
        counts=_counts(trace, sample),
        runs=_runs(trace),
        scores=infos,
        absent=absent,
        measurements=measurements,
        sharing=_sharing(measurements),
        coefficients=coefficients,
        refits=refit_paths(trace),
        claims=all_claims(measurements, coefficients, sample.pairs),
        pairs=sample.pairs,
    )


def _sharing(measurements: Measurements) -> list[Sharing]:
    one, each = measurements.get(LOGIT_Q_MAX, {}), measurements.get(OWN_SLOPES, {})
    return [
        Sharing(
            part.drafter,
            part.sampling,
            difference("auc", each.get(part), one.get(part)),
            difference("log_loss", one.get(part), each.get(part)),
        )
        for part in judged_parts(measurements)
    ]


def _settings(bins: int, replicates: int) -> dict[str, Any]:
    return {
        "ece_bins": bins,
        "confidence": CONFIDENCE,
        "replicates": replicates,
        "fewest_requests_for_an_interval": MIN_BLOCKS,
        "folds": fit.FOLDS,
        "max_labels_of_a_fit": fit.MAX_FIT_LABELS,
        "max_labels_of_river": peer.MAX_PEER_LABELS,
    }


def _counts(trace: Trace, sample: Sample) -> dict[str, int]:
    return {
        "drafts": len(trace.drafts),
        "labelled": len(sample),
        "left_out_not_finite": sample.num_left_out,
        "left_out_not_telling": int(((trace.drafts.label >= 0) & ~trace.drafts.telling).sum()),
        "requests": sample.num_requests,
        "steps": len(trace.steps),
    }


def _runs(trace: Trace) -> list[dict[str, Any]]:
    labels = np.bincount(trace.labelled.run, minlength=len(trace.runs))
    names = ("run", "target", "drafter", "method", "num_speculative_tokens", "trimmed", "rejection_sample_method")
    return [
        {**{name: getattr(run, name) for name in names}, "labelled": int(count)}
        for run, count in zip(trace.runs, labels, strict=True)
    ]
