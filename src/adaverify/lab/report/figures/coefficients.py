"""The estimator's coefficients, refit by refit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex
from numpy.typing import NDArray

from adaverify.lab.report.canvas import BLUE, INK, ORANGE, PURPLE, RED, Picture, canvas, legend_below
from adaverify.lab.report.names import drafter_name
from adaverify.lab.trace import Steps, Trace

MOST_POINTS = 200
_BY_POSITION = LinearSegmentedColormap.from_list("positions", [BLUE, PURPLE, RED, ORANGE])


def coefficients_over_refits(trace: Trace) -> Picture:
    """Slope above, intercepts by position below; one line a run."""
    title = "Slope and intercepts over refits"
    name = drafter_name(trace)
    runs = [part for index in range(len(trace.runs)) if len(part := _refits(trace.steps, index))]
    if not any(run.num_refits[-1] for run in runs):
        return Picture(f"{title}: {name}", None, _why_none(trace))
    figure, (above, below) = canvas(title, name, rows=(2, 3), height=5.0)
    K = trace.num_speculative_tokens
    colours = [to_hex(_BY_POSITION(i / max(1, K - 1))) for i in range(K)]
    thin: dict[str, Any] = {"marker": "o", "markersize": 2.5, "linewidth": 1.4}
    handles = []
    for run in runs:
        above.plot(run.num_refits, run.slope, color=INK, **thin)
        handles = [below.plot(run.num_refits, run.intercepts[:, i], color=colours[i], **thin)[0] for i in range(K)]
    above.set(ylabel="Slope w")
    below.set(ylabel="Intercept b", xlabel="Refit")
    below.locator_params(axis="x", integer=True)
    legend_below(figure, handles, [f"position {i}" for i in range(1, K + 1)])
    return Picture(f"{title}: {name}", figure, _summary(runs, K))


def _refits(steps: Steps, run: int) -> Steps:
    """The first step after each refit of one run, thinned where there are very many."""
    own = steps.select((steps.run == run) & np.isfinite(steps.slope))
    _, first = np.unique(own.num_refits, return_index=True)
    if len(first) > MOST_POINTS:
        first = first[np.linspace(0, len(first) - 1, MOST_POINTS).round().astype(int)]
    return own.select(first)


def _why_none(trace: Trace) -> str:
    if all(run.confidence == "head" for run in trace.runs):
        return "This drafter's own head gave the confidences; the estimator was never refitted."
    return "The estimator was never refitted in the steps recorded."


def _summary(runs: list[Steps], K: int) -> str:
    slopes = np.array([run.slope[-1] for run in runs])
    intercepts = np.stack([run.intercepts[-1, :K] for run in runs])
    refits = sum(int(run.num_refits[-1]) for run in runs)
    ends = ", ".join(_span(values) for values in intercepts.T)
    counted = f"{refits:,} refits in {len(runs)} run{'s' * (len(runs) > 1)}"
    return f"{counted}. At the end: slope {_span(slopes)}; intercepts by position {ends}."


def _span(values: NDArray[np.floating]) -> str:
    """One number, or the smallest and the largest."""
    known = values[np.isfinite(values)]
    if not len(known):
        return "none"
    low, high = f"{known.min():.3f}", f"{known.max():.3f}"
    return low if low == high else f"{low} to {high}"
