"""Proof by enumeration that a rule keeps the output exact: :func:`audit_exactness` runs them all.

``law.py`` has the models and their laws, ``drafting.py`` and ``enumeration.py`` walk every draw, ``rules.py`` holds
the rules, ``worlds.py`` the models they are tried on, ``cases.py`` what is expected of each.
"""

from adaverify.policy.exactness.audit import AuditResult, audit_case, audit_exactness
from adaverify.policy.exactness.cases import Case, audit_cases
from adaverify.policy.exactness.drafting import NoiseSource
from adaverify.policy.exactness.enumeration import Enumeration, Rule, enumerate_output
from adaverify.policy.exactness.law import Block, Pair, target_law, total_variation
from adaverify.policy.exactness.worlds import Setting, fixed_pair, law_of, random_pair

__all__ = [
    "AuditResult",
    "Block",
    "Case",
    "Enumeration",
    "NoiseSource",
    "Pair",
    "Rule",
    "Setting",
    "audit_case",
    "audit_cases",
    "audit_exactness",
    "enumerate_output",
    "fixed_pair",
    "law_of",
    "random_pair",
    "target_law",
    "total_variation",
]
