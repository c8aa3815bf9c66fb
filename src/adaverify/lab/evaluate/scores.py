"""The scores that are compared: what they read, whether they may decide what is verified, and their values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.evaluate import features
from adaverify.lab.evaluate.fit import MAX_FIT_LABELS, cross_validated
from adaverify.lab.evaluate.peer import MAX_PEER_LABELS, river_is_installed, river_prequential
from adaverify.lab.evaluate.prequential import EstimatorFactory, paper_estimator, prequential, robust_estimator
from adaverify.lab.evaluate.sample import Sample
from adaverify.lab.trace import Trace

LOGIT_Q_MAX = "logit q_max"
WHERE_OVERLAP = "logit q_max, where overlap"
OWN_SLOPES = "logit q_max, K slopes"
RAW_Q_MAX = "q_max"
LOGIT_Q_SAMPLED = "logit q_sampled"
HEAD = "head"
PAPER = "online: paper"
ROBUST = "online: robust"
RIVER = "online: river"
UNFIT = "too few requests, or labels all alike, to fit and predict by cross-validation"
NO_HEAD = "no drafter with a confidence head was recorded"

How = Literal["fitted", "as it is", "online"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """Predictions of acceptance.

    Attributes
    ----------
    name : str
    lossless : bool
        Whether drafts may be trimmed by it under standard verification without changing the law of the output: it
        does not know the token drawn. Under coupled verification that matters for no score.
    how : str
        ``fitted`` (predicted by cross-validation), ``as it is``, or ``online`` (predicted before learning).
    values : ndarray, shape [N]
        Log-odds of acceptance, or chances; nan for drafts without.
    is_log_odds : bool
    note : str
        What a reader of its row has to know.
    absence : str
        Why there may be no value at all.
    """

    name: str
    lossless: bool
    how: How
    values: Floats
    is_log_odds: bool = True
    note: str = ""
    absence: str = ""

    @property
    def chances(self) -> Floats:
        """Chances of acceptance, shape [N]."""
        return features.chance(self.values) if self.is_log_odds else self.values

    @property
    def is_absent(self) -> bool:
        """Whether it has no value for any draft."""
        return not bool(np.isfinite(self.values).any())


def all_scores(
    trace: Trace,
    sample: Sample,
    estimators: dict[str, EstimatorFactory] | None = None,
    max_fit_labels: int = MAX_FIT_LABELS,
    max_peer_labels: int = MAX_PEER_LABELS,
) -> Iterator[Score]:
    """Every score of a trace, one at a time so that memory holds one of them.

    Parameters
    ----------
    trace : Trace
    sample : Sample
        Of this trace.
    estimators : dict of str to callable, optional
        Online estimators by name, besides the paper's.
    max_fit_labels, max_peer_labels : int
    """
    yield from _fitted_scores(sample, max_fit_labels)
    yield from _given_scores(sample)
    online = {PAPER: paper_estimator, ROBUST: robust_estimator, **(estimators or {})}
    yield from _online_scores(trace, sample, online, max_peer_labels)


def _fitted_scores(sample: Sample, max_labels: int) -> Iterator[Score]:
    drafts = sample.drafts
    log_odds = drafts.logit_q_max.astype(np.float64)
    drawn = features.log_odds_drawn(drafts)
    columns = (
        (LOGIT_Q_MAX, True, log_odds),
        ("entropy", True, drafts.entropy.astype(np.float64)),
        ("margin", True, features.margin(drafts)),
        ("-log(-log q_max)", True, features.minus_log_minus_log(log_odds)),
        (LOGIT_Q_SAMPLED, False, drawn),
        ("-log(-log q_sampled)", False, features.minus_log_minus_log(drawn)),
        ("head, fitted", True, drafts.head_logit.astype(np.float64)),
    )
    with_overlap = np.isfinite(drafts.overlap)
    for name, lossless, column in columns:
        why = UNFIT if np.isfinite(column).any() else NO_HEAD
        score = Score(name, lossless, "fitted", cross_validated(sample, column, max_labels=max_labels), absence=why)
        yield score
        if name == LOGIT_Q_MAX and with_overlap.any() and not with_overlap.all():
            same = np.where(with_overlap, score.values, np.nan)
            yield replace(score, name=WHERE_OVERLAP, values=same, note="those whose overlap was recorded")
    own = cross_validated(sample, log_odds, shared=False, max_labels=max_labels)
    yield Score(OWN_SLOPES, True, "fitted", own, absence=UNFIT)


def _given_scores(sample: Sample) -> Iterator[Score]:
    drafts = sample.drafts
    yield Score(RAW_Q_MAX, True, "as it is", drafts.logit_q_max.astype(np.float64))
    head = drafts.head_logit.astype(np.float64)
    yield Score(HEAD, True, "as it is", head, absence=NO_HEAD)
    served = drafts.prediction.astype(np.float64)
    yield Score("as served", True, "as it is", served, is_log_odds=False, absence="no prediction was recorded")
    overlap = drafts.overlap.astype(np.float64).clip(0, 1)
    why = "the overlap of p and q was not recorded"
    yield Score("overlap of p and q", True, "as it is", overlap, is_log_odds=False, absence=why)


def _online_scores(
    trace: Trace, sample: Sample, estimators: dict[str, EstimatorFactory], max_peer_labels: int
) -> Iterator[Score]:
    usable = np.isfinite(trace.labelled.logit_q_max)
    by_paper = None
    for name, factory in estimators.items():
        score = Score(name, True, "online", prequential(trace, factory)[usable], is_log_odds=False)
        by_paper = score if name == PAPER else by_paper
        yield score
    if not river_is_installed():
        nothing = np.full(len(sample), np.nan)
        why = "river is not installed: pip install river"
        yield Score(RIVER, True, "online", nothing, is_log_odds=False, absence=why)
        return
    peer = river_prequential(trace, max_peer_labels)[usable]
    predicted = np.isfinite(peer)
    part = "" if predicted.all() else "the first part of every run, since it is slow"
    yield Score(RIVER, True, "online", peer, is_log_odds=False, note=part)
    if part and by_paper is not None:
        same = np.where(predicted, by_paper.values, np.nan)
        yield replace(by_paper, name=f"{PAPER}, river's part", values=same, note="the labels that river predicted")
