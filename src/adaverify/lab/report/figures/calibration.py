"""Calibration over time: predicted and observed acceptance in windows of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.report.canvas import BLUE, LINE, MUTED, ORANGE, Picture, canvas, legend_below, strip_of_counts
from adaverify.lab.report.names import drafter_name
from adaverify.lab.trace import Drafts, Trace

MOST_WINDOWS = 60
LABELS_A_WINDOW = 100


@dataclass(frozen=True)
class Windows:
    """Labelled drafts in windows of equally many steps, runs one after another.

    Attributes
    ----------
    middle : float64 [W]
        Middle of the window, in steps from the first of the first run.
    run : int64 [W]
    predicted, observed : float64 [W]
        Mean prediction and share accepted.
    count : int64 [W]
        Labelled drafts, at least 1.
    steps : int
        Steps in a window.
    """

    middle: NDArray[np.float64]
    run: NDArray[np.int64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    count: NDArray[np.int64]
    steps: int

    @classmethod
    def of(cls, drafts: Drafts) -> Windows:
        """Cut ``drafts`` into as many windows as their number allows; none spans two runs."""
        num_windows = min(MOST_WINDOWS, -(-len(drafts) // LABELS_A_WINDOW))
        runs, of_run = np.unique(drafts.run, return_inverse=True)
        steps_of_runs = [drafts.step[of_run == index] for index in range(len(runs))]
        first = np.array([own.min() for own in steps_of_runs])
        spans = np.array([own.max() for own in steps_of_runs]) - first + 1
        steps = int(-(-spans.sum() // num_windows))
        windows = -(-spans // steps)
        windows_before, steps_before = (np.cumsum(sizes) - sizes for sizes in (windows, spans))
        code = windows_before[of_run] + (drafts.step - first[of_run]) // steps
        count = np.bincount(code, minlength=int(windows.sum()))
        run = np.repeat(np.arange(len(runs)), windows)
        within = np.arange(len(count)) - windows_before[run]
        middle = steps_before[run] + np.minimum((within + 0.5) * steps, spans[run] - 0.5)
        some = count > 0
        predicted, observed = (
            np.bincount(code, weights=values, minlength=len(count))[some] / count[some]
            for values in (drafts.prediction, drafts.accepted)
        )
        return cls(middle[some], runs[run[some]].astype(np.int64), predicted, observed, count[some], steps)


def calibration_over_time(trace: Trace) -> Picture:
    """Mean prediction and observed acceptance of labelled drafts, window by window, above the labels of each."""
    title = "Predicted and observed acceptance over time"
    name = drafter_name(trace)
    drafts = trace.labelled.select(np.isfinite(trace.labelled.prediction))
    if not len(drafts):
        return Picture(f"{title}: {name}", None, "No draft of this drafter has a prediction and a label.")
    windows = Windows.of(drafts)
    figure, (axes, strip) = canvas(title, name, rows=(4, 1))
    boundaries = np.flatnonzero(np.diff(windows.run)) + 1
    for boundary in boundaries:
        axes.axvline(windows.middle[boundary - 1 : boundary + 1].mean(), color=MUTED, linewidth=0.8, linestyle=":")
    x, predicted, observed = (
        np.insert(values, boundaries, np.nan) for values in (windows.middle, windows.predicted, windows.observed)
    )
    handles = [
        axes.plot(x, predicted, color=BLUE, marker="o", markersize=3)[0],
        axes.plot(x, observed, color=ORANGE, marker="s", markersize=3)[0],
    ]
    shares = np.concatenate([windows.predicted, windows.observed])
    axes.set(ylabel="Acceptance", ylim=(max(0, shares.min() - 0.05), min(1, shares.max() + 0.05)))
    strip.bar(windows.middle, windows.count, width=0.9 * windows.steps, color=LINE)
    strip.set(xlabel="Step" + (" (runs one after another)" if len(boundaries) else ""))
    strip_of_counts(strip, "Labels")
    legend_below(figure, handles, ["predicted, as served", "observed"])
    return Picture(f"{title}: {name}", figure, _summary(windows))


def _summary(windows: Windows) -> str:
    gap = windows.predicted - windows.observed
    size = f"{windows.steps:,} step{'s' * (windows.steps > 1)}"
    return (
        f"Windows of {size}, {np.median(windows.count):,.0f} labels in the median one. Predicted less observed: "
        f"{np.average(gap, weights=windows.count):+.3f} on average, {gap.min():+.3f} to {gap.max():+.3f}."
    )
