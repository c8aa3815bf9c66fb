"""Decisions of adaptive verification: tensors in, numbers out; no model, no I/O, no state but what is learned.

One step: :func:`choose_budget` from stale survival, or :func:`choose_depth` that and the depth of drafting;
:func:`admit` from live survival, then :meth:`OnlineAcceptanceEstimator.observe` with the outcome; after drafting,
:func:`log_odds_of_max` and :meth:`OnlineAcceptanceEstimator.predict` give the next confidences. None of them reads a
tensor on the host.
Between steps :class:`LiveCosts` learns from the clock what steps cost.
"""

from adaverify.policy.acceptance import AcceptanceEstimator
from adaverify.policy.budget import choose_budget
from adaverify.policy.cost import CostCurve, CostTable, MaterializedCosts
from adaverify.policy.depth import DepthChoice, choose_depth, worth_another_pass
from adaverify.policy.estimator import OnlineAcceptanceEstimator, solve_arrowhead
from adaverify.policy.features import MAX_LOG_ODDS, log_odds_of_max
from adaverify.policy.live_costs import LiveCosts
from adaverify.policy.outlook import Outlook
from adaverify.policy.probing import ProbeSchedule
from adaverify.policy.requests import RequestRows
from adaverify.policy.robust import RobustEstimator
from adaverify.policy.shared_slopes import SharedSlopesEstimator, solve_shared_slopes
from adaverify.policy.step import StepSize, StepTime
from adaverify.policy.survival import admit, survival, valid_prefix

__all__ = [
    "MAX_LOG_ODDS",
    "AcceptanceEstimator",
    "CostCurve",
    "CostTable",
    "DepthChoice",
    "LiveCosts",
    "MaterializedCosts",
    "OnlineAcceptanceEstimator",
    "Outlook",
    "ProbeSchedule",
    "RequestRows",
    "RobustEstimator",
    "SharedSlopesEstimator",
    "StepSize",
    "StepTime",
    "admit",
    "choose_budget",
    "choose_depth",
    "log_odds_of_max",
    "solve_arrowhead",
    "solve_shared_slopes",
    "survival",
    "valid_prefix",
    "worth_another_pass",
]
