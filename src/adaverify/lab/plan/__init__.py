"""What speculation would bring, before it is served: recorded acceptance, a table of costs, any number of users.

The way through: :func:`load_costs` finds a table, :func:`make_plan` replays every fixed depth and adaptive verification
at each load, :func:`advice` says what follows, and :func:`check` holds it against what ``adaverify bench`` measured.
"""

from adaverify.lab.plan.advice import advice
from adaverify.lab.plan.against import Check, Measured, check, read_measured
from adaverify.lab.plan.lengths import Lengths
from adaverify.lab.plan.plan import Plan, make_plan
from adaverify.lab.plan.prediction import AV, Prediction
from adaverify.lab.plan.tables import SourcedCosts, costs_in_trace, load_costs, shipped_tables

__all__ = [
    "AV",
    "Check",
    "Lengths",
    "Measured",
    "Plan",
    "Prediction",
    "SourcedCosts",
    "advice",
    "check",
    "costs_in_trace",
    "load_costs",
    "make_plan",
    "read_measured",
    "shipped_tables",
]
