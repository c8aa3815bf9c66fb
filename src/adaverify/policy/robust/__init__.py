"""The acceptance estimator that its own traffic cannot break."""

from adaverify.policy.robust.estimator import COUPLED, STANDARD, RobustEstimator, Start

__all__ = ["COUPLED", "STANDARD", "RobustEstimator", "Start"]
