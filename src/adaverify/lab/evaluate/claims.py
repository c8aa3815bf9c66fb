"""The paper's claims, each judged on a trace by intervals.

Source of the claims and of their numbers: "Adaptive verification without a confidence head", vLLM blog, 2026-10-14.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from adaverify.lab.evaluate.bootstrap import Estimate
from adaverify.lab.evaluate.coefficients import Coefficients
from adaverify.lab.evaluate.judging import Claim, ratio_of
from adaverify.lab.evaluate.measure import Measured, Part, difference
from adaverify.lab.evaluate.scores import HEAD, LOGIT_Q_MAX, LOGIT_Q_SAMPLED, NO_HEAD, OWN_SLOPES, RAW_Q_MAX, UNFIT
from adaverify.lab.evaluate.workload_claims import claims_on_pairs, claims_on_workloads
from adaverify.policy.exactness import audit_cases
from adaverify.policy.exactness.audit import audit_case

ECE_FACTOR = 7.0
SHARING_AUC = 0.001

Measurements = dict[str, dict[Part, Measured]]


def all_claims(measurements: Measurements, coefficients: Coefficients) -> list[Claim]:
    """Every claim, for every drafter and, where that has a meaning, for all of them together."""
    scored = [part.drafter for part in measurements[RAW_Q_MAX] if part == Part(part.drafter)]
    claims: list[Claim] = []
    for drafter in scored:
        claims += _claims_on_scores(measurements, drafter)
    claims += _head_claims(measurements, scored)
    for drafter in coefficients.drafters:
        claims += claims_on_workloads(coefficients, drafter)
    return [*claims, *claims_on_pairs(coefficients)]


def _claims_on_scores(measurements: Measurements, drafter: str) -> Iterator[Claim]:
    part = Part(drafter)
    fitted, own, drawn = (measurements.get(name, {}).get(part) for name in (LOGIT_Q_MAX, OWN_SLOPES, LOGIT_Q_SAMPLED))
    raw = measurements[RAW_Q_MAX][part]
    why = "" if fitted else UNFIT
    yield _calibration_claim(drafter, raw, fitted, why)
    cost, gain = "AUC of K slopes - AUC of one", "AUC of logit q_sampled - AUC of logit q_max"
    yield Claim.judged(
        drafter,
        f"One slope for all positions costs less than {SHARING_AUC:g} AUC (paper: .0002)",
        {cost: ("below", SHARING_AUC)},
        {
            cost: difference("auc", own, fitted),
            "log-loss of one - log-loss of K": difference("log_loss", fitted, own),
        },
        why,
    )
    yield Claim.judged(
        drafter,
        "q_sampled tells more than q_max, but trimming by it changes the law of the output (standard verification)",
        {gain: ("above", 0.0)},
        {
            gain: difference("auc", drawn, fitted),
            "log-loss of logit q_max - log-loss of logit q_sampled": difference("log_loss", fitted, drawn),
            "total variation from the target's law when trimmed by it, by enumeration of an example": bias_of_drawn(),
        },
        why,
    )


def bias_of_drawn() -> float:
    """Total variation from the target's law when drafts are trimmed by the drawn token's q, in the audit's example."""
    case = next(case for case in audit_cases() if case.rule == "trim by the drawn token's q")
    return audit_case(case).max_tv


def _calibration_claim(drafter: str, raw: Measured, fitted: Measured | None, why: str) -> Claim:
    gain = Estimate()
    if fitted is not None:
        values = (raw.ece.value or 0.0, fitted.ece.value or 0.0)
        gain = ratio_of(raw.replicates["ece"], fitted.replicates["ece"], values, fitted.has_interval)
    name = "ECE of q_max / ECE of fitted logit q_max"
    claim = Claim.judged(
        drafter,
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
    )
    # an error that is all noise of the labels says how large the true ratio is at least, not at most
    if claim.verdict == "does not hold" and fitted and (fitted.ece.value or 0.0) <= (fitted.ece_of_calibrated or 0.0):
        return replace(claim, verdict="undecided", why="the fitted ECE is within the noise of so many labels")
    return claim


def _head_claims(measurements: Measurements, drafters: Sequence[str]) -> Iterator[Claim]:
    text = "A trained head is ahead of fitted logit q_max in AUC at position 1 and behind from 2 on"
    heads, fitted = measurements.get(HEAD, {}), measurements.get(LOGIT_Q_MAX, {})
    every = measurements[RAW_Q_MAX]
    with_head = [d for d in drafters if Part(d) in heads and heads[Part(d)].n == every[Part(d)].n]
    if not with_head:
        yield Claim.judged(drafters[0], text, {}, {}, NO_HEAD)
    for drafter in with_head:
        gains = {"1": Estimate(), "from 2": Estimate()} | {
            part.positions: difference("auc", heads.get(part), measured)
            for part, measured in fitted.items()
            if part.drafter == drafter and part.sampling == "all"
        }
        names = {position: f"AUC of head - AUC of logit q_max, positions: {position}" for position in gains}
        yield Claim.judged(
            drafter,
            text,
            {names["1"]: ("above", 0.0), names["from 2"]: ("below", 0.0)},
            {names[position]: gain for position, gain in gains.items()},
        )
