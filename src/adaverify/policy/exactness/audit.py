"""The audit: whether each rule is as exact, or as biased, as it is said to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adaverify.policy.exactness.cases import Case, standard_cases
from adaverify.policy.exactness.coupled_cases import coupled_cases
from adaverify.policy.exactness.depth_cases import depth_cases

EXACT_TV = 1e-12
BIASED_TV = 1e-3


@dataclass(frozen=True)
class AuditResult:
    """Outcome of one rule.

    Attributes
    ----------
    rule : str
    expected : str
        ``exact`` or ``biased``.
    max_tv : float
        Largest total variation from the target's law over the worlds tried.
    verdict : str
        ``pass``, ``fail``, or ``inconclusive`` where an adaptive rule verified nothing, or left nothing out, in
        some world.
    """

    rule: str
    expected: Literal["exact", "biased"]
    max_tv: float
    verdict: Literal["pass", "fail", "inconclusive"]


def audit_cases() -> tuple[Case, ...]:
    """List all rules under audit, by what they are about, shipped ones first."""
    return (*standard_cases(), *coupled_cases(), *depth_cases())


def audit_exactness() -> list[AuditResult]:
    """Enumerate every shipped and every forbidden rule; takes seconds and needs no model."""
    return [audit_case(case) for case in audit_cases()]


def audit_case(case: Case) -> AuditResult:
    """Enumerate one rule in all its worlds."""
    outcomes = [(setting, setting.enumerate()) for setting in case.settings]
    max_tv = max(setting.distance(outcome) for setting, outcome in outcomes)
    decides = all(outcome.admits and outcome.trims for _, outcome in outcomes)
    as_expected = max_tv <= EXACT_TV if case.expected == "exact" else max_tv > BIASED_TV
    if case.adaptive and not decides:
        return AuditResult(case.rule, case.expected, max_tv, "inconclusive")
    return AuditResult(case.rule, case.expected, max_tv, "pass" if as_expected else "fail")
