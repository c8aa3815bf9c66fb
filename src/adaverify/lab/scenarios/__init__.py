"""Traffic with a known law that is hard on an estimator, and what each estimator makes of it; needs no trace.

The way through: a :class:`Scenario` of the :data:`CATALOGUE` says what happens, :func:`make_play` draws it, :func:`run`
plays the estimators over it beside an offline fit and the oracle, and an :class:`Outcome` says how long each was ill.
"""

from adaverify.lab.scenarios.catalogue import CATALOGUE, choose
from adaverify.lab.scenarios.law import Law
from adaverify.lab.scenarios.outcome import HEALTHY, LOW, Course, Outcome
from adaverify.lab.scenarios.play import Play, make_play
from adaverify.lab.scenarios.run import run
from adaverify.lab.scenarios.scenario import INTERVAL, Phase, Scenario, Tenant

__all__ = [
    "CATALOGUE",
    "HEALTHY",
    "INTERVAL",
    "LOW",
    "Course",
    "Law",
    "Outcome",
    "Phase",
    "Play",
    "Scenario",
    "Tenant",
    "choose",
    "make_play",
    "run",
]
