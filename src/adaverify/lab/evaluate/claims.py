"""The paper's claims, each judged on a trace by intervals.

Source of the claims and of their numbers: "Adaptive verification without a confidence head", vLLM blog, 2026-10-14.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from adaverify.lab.evaluate.bootstrap import Estimate
from adaverify.lab.evaluate.coefficients import Coefficients
from adaverify.lab.evaluate.judging import Claim, ratio_of
from adaverify.lab.evaluate.measure import Measured, are_of_same_drafts, difference
from adaverify.lab.evaluate.parts import Part, judged_part, pairs_behind
from adaverify.lab.evaluate.sample import Pair
from adaverify.lab.evaluate.scores import HEAD, LOGIT_Q_MAX, LOGIT_Q_SAMPLED, NO_HEAD, OWN_SLOPES, RAW_Q_MAX, UNFIT
from adaverify.lab.evaluate.workload_claims import claims_on_pairs, claims_on_workloads
from adaverify.policy.exactness import audit_cases
from adaverify.policy.exactness.audit import audit_case

ECE_FACTOR = 7.0
SHARING_AUC = 0.001
TRIMMED = "recorded while drafts were trimmed, so that only promising ones have labels; record with --no-trim"
PARTLY_UNFIT = "part of the drafts are of too few requests, or labels all alike, to be fitted and predicted"

Measurements = dict[str, dict[Part, Measured]]


def all_claims(measurements: Measurements, coefficients: Coefficients, pairs: Sequence[Pair]) -> list[Claim]:
    """Every claim, for every drafter and, where that has a meaning, for all of them together.

    None is decided by what was recorded while drafts were trimmed: the labels are those of promising drafts.
    """
    judged = judged_parts(measurements)
    claims: list[Claim] = []
    for part in judged:
        claims += _claims_on_scores(measurements, part)
        if not any(pair.coupled for pair in pairs_behind(pairs, part.drafter)):
            claims.append(_drawn_claim(measurements, part))
    claims += _head_claims(measurements, judged)
    for drafter in coefficients.drafters:
        claims += claims_on_workloads(coefficients, drafter)
    claims += claims_on_pairs(coefficients)
    trimmed = {claim.drafter for claim in claims if any(p.trimmed for p in pairs_behind(pairs, claim.drafter))}
    return [claim.undecided(TRIMMED) if claim.drafter in trimmed else claim for claim in claims]


def judged_parts(measurements: Measurements) -> list[Part]:
    """What each drafter is judged by, and all of them together."""
    parts = measurements[RAW_Q_MAX]
    return [judged_part(parts, drafter) for drafter in dict.fromkeys(part.drafter for part in parts)]


def _claims_on_scores(measurements: Measurements, part: Part) -> Iterator[Claim]:
    drafter, sampling = part.drafter, part.sampling
    fitted, own = (measurements.get(name, {}).get(part) for name in (LOGIT_Q_MAX, OWN_SLOPES))
    every = measurements[RAW_Q_MAX]
    why = _lacking(every[part], fitted)
    yield _calibration_claim(part, every[part], fitted, why)
    cost = "AUC of K slopes - AUC of one"
    sharing = Claim.judged(
        drafter,
        f"One slope for all positions costs less than {SHARING_AUC:g} AUC (paper: .0002)",
        {cost: ("below", SHARING_AUC)},
        {
            cost: difference("auc", own, fitted),
            "log-loss of one - log-loss of K": difference("log_loss", fitted, own),
        },
        why,
        sampling,
    )
    positions = [p for p in every if p.is_one_position and (p.drafter, p.sampling) == (drafter, sampling)]
    # one slope for one position costs nothing by construction
    yield sharing if len(positions) > 1 else sharing.undecided("labels at fewer than two positions")


def _drawn_claim(measurements: Measurements, part: Part) -> Claim:
    fitted, drawn = (measurements.get(name, {}).get(part) for name in (LOGIT_Q_MAX, LOGIT_Q_SAMPLED))
    gain = "AUC of logit q_sampled - AUC of logit q_max"
    return Claim.judged(
        part.drafter,
        "q_sampled tells more than q_max, but trimming by it changes the law of the output (standard verification)",
        {gain: ("above", 0.0)},
        {
            gain: difference("auc", drawn, fitted),
            "log-loss of logit q_max - log-loss of logit q_sampled": difference("log_loss", fitted, drawn),
            "total variation from the target's law when trimmed by it, by enumeration of an example": bias_of_drawn(),
        },
        _lacking(measurements[RAW_Q_MAX][part], fitted),
        part.sampling,
    )


def _lacking(raw: Measured, fitted: Measured | None) -> str:
    """What keeps fitted q_max from being compared with raw q_max."""
    if fitted is None:
        return UNFIT
    return "" if are_of_same_drafts(raw, fitted) else PARTLY_UNFIT


def bias_of_drawn() -> float:
    """Total variation from the target's law when drafts are trimmed by the drawn token's q, in the audit's example."""
    case = next(case for case in audit_cases() if case.rule == "trim by the drawn token's q")
    return audit_case(case).max_tv


def _calibration_claim(part: Part, raw: Measured, fitted: Measured | None, why: str) -> Claim:
    gain = Estimate()
    if fitted is not None and are_of_same_drafts(raw, fitted):
        values = (raw.ece.value or 0.0, fitted.ece.value or 0.0)
        gain = ratio_of(raw.replicates["ece"], fitted.replicates["ece"], values, fitted.has_interval)
    name = "ECE of q_max / ECE of fitted logit q_max"
    claim = Claim.judged(
        part.drafter,
        f"Fitting beats raw q_max in ECE by {ECE_FACTOR:g}x (paper: 7.4x)",
        {name: ("above", ECE_FACTOR)},
        {
            name: gain,
            "ECE of q_max": raw.ece,
            "ECE of fitted logit q_max": fitted.ece if fitted else None,
            "ECE of a perfectly calibrated predictor, 95% quantile": fitted.ece_of_calibrated if fitted else None,
            "mean q_max": raw.mean_prediction,
            "observed acceptance": raw.observed,
        },
        why,
        part.sampling,
    )
    # an error that is all noise of the labels says how large the true ratio is at least, not at most
    if claim.verdict == "does not hold" and fitted and (fitted.ece.value or 0.0) <= (fitted.ece_of_calibrated or 0.0):
        return claim.undecided("the fitted ECE is within the noise of so many labels")
    return claim


def _head_claims(measurements: Measurements, judged: Sequence[Part]) -> Iterator[Claim]:
    text = "A trained head is ahead of fitted logit q_max in AUC at position 1 and behind from 2 on"
    heads, fitted = measurements.get(HEAD, {}), measurements.get(LOGIT_Q_MAX, {})
    every = measurements[RAW_Q_MAX]
    with_head = [part for part in judged if part in heads and heads[part].n == every[part].n]
    if not with_head:
        yield Claim.judged(judged[0].drafter, text, {}, {}, NO_HEAD)
    for whole in with_head:
        gains = {"1": Estimate(), "from 2": Estimate()} | {
            part.positions: difference("auc", heads.get(part), fitted.get(part))
            for part in every
            if (part.drafter, part.sampling) == (whole.drafter, whole.sampling)
        }
        names = {position: f"AUC of head - AUC of logit q_max, positions: {position}" for position in gains}
        yield Claim.judged(
            whole.drafter,
            text,
            {names["1"]: ("above", 0.0), names["from 2"]: ("below", 0.0)},
            {names[position]: gain for position, gain in gains.items()},
            sampling=whole.sampling,
        )
