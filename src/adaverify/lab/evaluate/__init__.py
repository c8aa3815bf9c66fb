"""How good predictions of acceptance are, from recorded traces: scores, coefficients, the paper's claims."""

from adaverify.lab.evaluate.evaluation import Evaluation, evaluate
from adaverify.lab.evaluate.metrics import Reliability, auc, ece, ece_of_calibrated, log_loss, reliability
from adaverify.lab.evaluate.prequential import EstimatorFactory, prequential
from adaverify.lab.evaluate.sample import select

__all__ = [
    "EstimatorFactory",
    "Evaluation",
    "Reliability",
    "auc",
    "ece",
    "ece_of_calibrated",
    "evaluate",
    "log_loss",
    "prequential",
    "reliability",
    "select",
]
