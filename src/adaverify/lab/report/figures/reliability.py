"""Reliability diagram: observed acceptance over predicted."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from adaverify.lab.evaluate.metrics import Reliability, ece_of_calibrated, reliability
from adaverify.lab.report.canvas import BLUE, MUTED, ORANGE, Picture, canvas, legend_below, strip_of_counts
from adaverify.lab.report.names import drafter_name
from adaverify.lab.trace import Trace


def reliability_diagram(trace: Trace) -> Picture:
    """Observed over predicted acceptance of the labelled drafts: as served, and with raw q_max for the prediction."""
    title = "Acceptance, predicted and observed"
    name = drafter_name(trace)
    drafts = trace.labelled
    predictions = {
        label: (values[known], drafts.label[known])
        for label, values in {"as served": drafts.prediction, "raw q_max": drafts.q_max}.items()
        if (known := np.isfinite(values)).any()
    }
    if not predictions:
        return Picture(f"{title}: {name}", None, "No draft of this drafter has a prediction and a label.")
    figure, (axes, strip) = canvas(title, name, rows=(4, 1), height=4.6)
    axes.plot([0, 1], [0, 1], color=MUTED, linestyle=":", linewidth=1)
    handles, labels, sentences = [], [], []
    for (label, (chance, outcome)), colour, marker in zip(
        predictions.items(), (BLUE, ORANGE), ("o", "s"), strict=False
    ):
        measured = reliability(chance, outcome)
        handles.append(_draw(axes, strip, measured, colour, marker))
        labels.append(f"{label}, ECE {measured.ece:.4f}")
        sentences.append(_sentence(label, measured, chance))
    axes.set(ylabel="Accepted (share)", xlim=(0, 1), ylim=(0, 1))
    strip.set(xlabel="Predicted chance of acceptance")
    strip_of_counts(strip, "Drafts")
    legend_below(figure, handles, labels)
    return Picture(f"{title}: {name}", figure, " ".join(sentences))


def _draw(axes: Axes, strip: Axes, measured: Reliability, colour: str, marker: str) -> Line2D:
    """The bins that are not empty, larger where there are more drafts, and the number of drafts in each."""
    filled = measured.count > 0
    x, y = measured.mean_prediction[filled], measured.observed[filled]
    (line,) = axes.plot(x, y, color=colour, marker=marker, linewidth=1.2, markersize=3)
    axes.scatter(x, y, s=8 + 70 * measured.count[filled] / measured.count.max(), color=colour, marker=marker)
    strip.stairs(measured.count, measured.edges, color=colour, linewidth=1.4)
    return line


def _sentence(label: str, measured: Reliability, chance: NDArray[np.floating]) -> str:
    count = measured.count
    observed = np.nansum(measured.observed * count) / count.sum()
    return (
        f"{label[0].upper()}{label[1:]}: ECE {measured.ece:.4f} (noise alone: up to {ece_of_calibrated(chance):.4f}), "
        f"mean prediction {chance.mean(dtype=float):.3f}, observed {observed:.3f}, {count.sum():,} labelled drafts."
    )
