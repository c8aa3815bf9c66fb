"""The acceptance estimator that its own traffic cannot break."""

from adaverify.policy.robust.estimator import RobustEstimator

__all__ = ["RobustEstimator"]
