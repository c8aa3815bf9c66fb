"""Proof by enumeration that a rule keeps the output exact: :func:`audit_exactness` runs them all.

``law.py`` has the models and their laws; ``drafting.py``, ``verifying.py`` and ``enumeration.py`` walk every draw, with
noise as in ``race.py`` where verification is coupled; ``rules.py`` holds the rules, ``worlds.py`` the models they are
tried on, ``cases.py`` and ``coupled_cases.py`` what is expected of each; ``depth_rules.py`` and ``depth_cases.py`` are
about how deep to draft.
"""

from adaverify.policy.exactness.audit import AuditResult, audit_case, audit_cases, audit_exactness
from adaverify.policy.exactness.cases import Case
from adaverify.policy.exactness.drafting import NoiseSource
from adaverify.policy.exactness.enumeration import Enumeration, Rule, enumerate_output
from adaverify.policy.exactness.law import Block, Pair, target_law, total_variation
from adaverify.policy.exactness.race import RaceSource
from adaverify.policy.exactness.verifying import verify_coupled, verify_standard
from adaverify.policy.exactness.worlds import Setting, fixed_pair, law_of, random_pair

__all__ = [
    "AuditResult",
    "Block",
    "Case",
    "Enumeration",
    "NoiseSource",
    "Pair",
    "RaceSource",
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
    "verify_coupled",
    "verify_standard",
]
