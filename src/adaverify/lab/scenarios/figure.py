"""Rates over time, one small panel a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from adaverify.lab.report.canvas import BLUE, GREEN, GREY, LINE, MUTED, ORANGE, PURPLE, RED, STYLE, TEAL
from adaverify.lab.report.svg import write_png
from adaverify.lab.scenarios.outcome import Course, Outcome
from adaverify.lab.scenarios.scenario import INTERVAL

_COLUMNS = 3
_PANEL = (3.9, 2.3)
_KNOWN = {"offline": GREY, "paper": ORANGE, "robust": BLUE}
_OTHERS = (GREEN, PURPLE, RED, TEAL)


def draw(outcomes: Sequence[Outcome], file: Path) -> None:
    """Write a PNG: the rate of every policy by the oracle's, refit interval by refit interval.

    Lines are means over the seeds, bands reach from the lowest to the highest seed. Phases that are not measured are
    shaded.
    """
    with matplotlib.rc_context(STYLE | {"font.size": 9, "axes.labelsize": 9, "legend.fontsize": 9}):
        columns = min(_COLUMNS, len(outcomes))
        rows = -(-len(outcomes) // columns)
        figure = Figure((columns * _PANEL[0], rows * _PANEL[1] + 0.6), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
        handles: dict[str, Artist] = {}
        for panel, outcome in zip(panels, outcomes, strict=False):
            handles |= _draw_panel(panel, outcome)
        for panel in panels[len(outcomes) :]:
            panel.set_axis_off()
        figure.supxlabel(f"Refit intervals of {INTERVAL} steps", fontsize=9)
        figure.supylabel("Rate, relative to the oracle", fontsize=9)
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=len(handles))
        write_png(figure, file)


def _draw_panel(axes: Axes, outcome: Outcome) -> dict[str, Artist]:
    """One scenario; the lines by their names."""
    scenario, others = outcome.scenario, iter(_OTHERS)
    handles: dict[str, Artist] = {}
    for course in (outcome.offline, *outcome.estimators):
        colour = _KNOWN.get(course.policy) or next(others, MUTED)
        handles[course.policy] = _draw_course(axes, course, outcome.oracle, colour)
    for phase, first in zip(scenario.phases, scenario.first_steps, strict=True):
        start, end = first / INTERVAL, (first + phase.num_steps) / INTERVAL
        if not phase.measured:
            axes.axvspan(start, end, color=LINE, alpha=0.5, linewidth=0, zorder=0)
        axes.text(start + 0.2, 0.02, phase.name, color=MUTED, fontsize=8)
    axes.set_title(scenario.name, fontsize=10, loc="left")
    axes.set(ylim=(0, 1.08), xlim=(0, scenario.num_steps / INTERVAL))
    axes.locator_params(axis="x", integer=True)
    return handles


def _draw_course(axes: Axes, course: Course, oracle: Course, colour: str) -> Artist:
    share = course.rates / oracle.rates
    middle = np.arange(share.shape[1]) + 0.5
    if len(share) > 1:
        axes.fill_between(middle, share.min(axis=0), share.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    return axes.plot(middle, share.mean(axis=0), color=colour, linewidth=1.5)[0]
