"""Recorded rounds through any policy and cost table, without a model.

The way through: :class:`Rounds` from a trace, :class:`Traffic` seats them, :class:`Prices` charges them, a policy of
:mod:`adaverify.lab.replay.policies` decides, and :func:`replay` keeps account. What is assumed stands in ``traffic.py``
(rounds are exchangeable), ``prompts.py`` (prompts, where they are played) and ``costs.py`` (the passes of a drafter
cost alike).
"""

from adaverify.lab.replay.comparison import Comparison, compare
from adaverify.lab.replay.costs import Prices, read_costs, recorded_costs
from adaverify.lab.replay.prompts import Prompts
from adaverify.lab.replay.result import Refit, ReplayResult, StepLog, Window
from adaverify.lab.replay.rounds import Blocks, Rounds, by_drafter
from adaverify.lab.replay.run import replay
from adaverify.lab.replay.traffic import Traffic

__all__ = [
    "Blocks",
    "Comparison",
    "Prices",
    "Prompts",
    "Refit",
    "ReplayResult",
    "Rounds",
    "StepLog",
    "Traffic",
    "Window",
    "by_drafter",
    "compare",
    "read_costs",
    "recorded_costs",
    "replay",
]
