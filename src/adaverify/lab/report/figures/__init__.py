"""The figures of the report, one family a file; each is a function of one drafter's trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from adaverify.lab.report.canvas import Picture
from adaverify.lab.report.figures.acceptance import acceptance_by_position
from adaverify.lab.report.figures.calibration import calibration_over_time
from adaverify.lab.report.figures.coefficients import coefficients_over_refits
from adaverify.lab.report.figures.costs import cost_curves
from adaverify.lab.report.figures.discrimination import auc_by_position
from adaverify.lab.report.figures.load import budget_over_load
from adaverify.lab.report.figures.reliability import reliability_diagram
from adaverify.lab.trace import Trace


@dataclass(frozen=True)
class Family:
    """One section of the report.

    Attributes
    ----------
    key : str
        Anchor on the page, and first part of the names of PNG files.
    heading, reading : str
        Heading of the section, and how to read its figures.
    draw : callable
        From a trace of one drafter to its picture.
    """

    key: str
    heading: str
    reading: str
    draw: Callable[[Trace], Picture]


FAMILIES = (
    Family(
        "reliability",
        "Reliability",
        "Drafts are grouped by their predicted chance of acceptance; a group on the diagonal was accepted just as "
        "often as predicted, one below it less often. ECE, the expected calibration error, is the mean distance from "
        "the diagonal, weighted by the drafts in each group, which the lower panel counts; noise alone gives a "
        "perfectly calibrated predictor as much as stated, or less, 95 times in 100.",
        reliability_diagram,
    ),
    Family(
        "auc",
        "AUC by position",
        "How well each score tells drafts that will be accepted from those that will not, among drafts of the same "
        "position: 1 is perfect, 0.5 is a coin. AUC sees the order of a score alone, not whether it is calibrated.",
        auc_by_position,
    ),
    Family(
        "acceptance",
        "Acceptance by position",
        "The share of drafts accepted, of those verified after all earlier drafts of their block were accepted. Where "
        "the budget trimmed, the drafts verified are the promising ones, and their share is flattered.",
        acceptance_by_position,
    ),
    Family(
        "coefficients",
        "Coefficients over refits",
        "The estimator predicts about sigmoid(w f + b) with f the log-odds of the likeliest draft token: one slope w, "
        "one intercept b a position (the robust estimator's at f = 0). Flat lines mean that it has settled; each run "
        "has a line of its own.",
        coefficients_over_refits,
    ),
    Family(
        "load",
        "Budget over load",
        "Drafts per request in steps with the same number of requests. As load grows, verifying costs more, and the "
        "budget should fall towards what is accepted; the distance from accepted to admitted is work done in vain.",
        budget_over_load,
    ),
    Family(
        "costs",
        "Cost curves",
        "Lines are the costs measured at start, points the medians of what steps took, with bars from the 10th to the "
        "90th percentile. Points above the line say that the table prices a step too cheap.",
        cost_curves,
    ),
    Family(
        "calibration",
        "Calibration over time",
        "Mean prediction and observed share accepted, in windows of steps. The lines should move together; a lasting "
        "gap is a bias, a gap after a jump shows how long the estimator took to follow a change of traffic.",
        calibration_over_time,
    ),
)

__all__ = [
    "FAMILIES",
    "Family",
    "acceptance_by_position",
    "auc_by_position",
    "budget_over_load",
    "calibration_over_time",
    "coefficients_over_refits",
    "cost_curves",
    "reliability_diagram",
]
