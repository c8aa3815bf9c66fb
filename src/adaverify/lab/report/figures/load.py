"""Budget, admitted and accepted drafts over load."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.report.bins import Bins
from adaverify.lab.report.canvas import (
    BLUE,
    GREEN,
    GREY,
    LINE,
    ORANGE,
    Picture,
    canvas,
    legend_below,
    lines,
    strip_of_counts,
)
from adaverify.lab.report.names import drafter_name
from adaverify.lab.trace import Steps, Trace

MOST_POINTS = 40


def budget_over_load(trace: Trace) -> Picture:
    """Mean drafts per request that fitted, were budgeted, verified and accepted, by number of requests."""
    title = "Drafts per request, by load"
    name = drafter_name(trace)
    steps, which = _trimmed(trace)
    if not len(steps):
        return Picture(f"{title}: {name}", None, "No step of this drafter was recorded.")
    bins = Bins.of(steps.num_requests, MOST_POINTS)
    requests = bins.sum(steps.num_requests)
    curves = {label: bins.sum(values) / requests for label, values in _parts(steps).items()}
    figure, (axes, strip) = canvas(title, name, rows=(4, 1))
    handles = lines(axes, bins.size, list(curves.values()), (GREY, BLUE, ORANGE, GREEN), nested=True)
    axes.set(ylabel="Drafts per request", ylim=(0, 1.05 * axes.get_ylim()[1]))
    strip.bar(bins.size, bins.count, width=0.8 * min(np.diff(bins.size), default=1.0), color=LINE)
    strip.set(xlabel="Requests in the step", xlim=(0, 1.05 * bins.size[-1] + 0.5))
    strip_of_counts(strip, "Steps")
    strip.locator_params(axis="x", integer=True)
    legend_below(figure, handles, list(curves))
    return Picture(f"{title}: {name}", figure, f"{_summary(steps)} {which}".strip())


def _trimmed(trace: Trace) -> tuple[Steps, str]:
    """Steps of the runs that trimmed, and a word on those that did not."""
    trimmed = np.array([run.trimmed for run in trace.runs])
    if not trimmed.any():
        return trace.steps, "Every draft was verified (--no-trim), whatever the budget."
    which = "" if trimmed.all() else "Runs that verified every draft (--no-trim) are left out."
    return trace.steps.select(trimmed[trace.steps.run]), which


def _parts(steps: Steps) -> dict[str, NDArray[np.integer]]:
    """What each curve counts."""
    return {
        "drafted": steps.max_draft_budget,
        "budget": steps.draft_budget,
        "admitted": steps.num_admitted,
        "accepted": steps.num_accepted,
    }


def _summary(steps: Steps) -> str:
    requests = int(steps.num_requests.sum())
    means = [f"{label} {int(values.sum()) / requests:.2f}" for label, values in _parts(steps).items()]
    low, high = int(steps.num_requests.min()), int(steps.num_requests.max())
    load = f"{low}" if low == high else f"{low} to {high}"
    return f"{len(steps):,} steps of {load} requests; drafts per request over all: {', '.join(means)}."
