"""The figures of a comparison: the frontier of each workload, and the gain of adaptive verification."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.statistics import Ratio
from adaverify.lab.bench.summary import Comparison, Point, Summary
from adaverify.lab.report.canvas import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    INK,
    MARKERS,
    MUTED,
    OLIVE,
    ORANGE,
    PURPLE,
    RED,
    STYLE,
    TEAL,
    Picture,
    canvas,
    legend_below,
)
from adaverify.lab.report.names import file_name, plain
from adaverify.lab.report.svg import write_png

_ADAPTIVE = (ORANGE, RED, OLIVE)
_FOREIGN = (GREEN, PURPLE, TEAL)
_PALEST = 0.25
_WIDTH_OF_GROUP = 0.6


def pictures(summary: Summary) -> dict[str, Picture]:
    """All figures by the names of their files, without the ending."""
    with matplotlib.rc_context(STYLE):
        found = {f"frontier-{file_name(name)}": frontier(summary, name) for name in summary.workloads}
        for arm in dict.fromkeys(one.arm for one in summary.gains):
            found[f"gain-{file_name(arm)}"] = gain(summary, arm)
    return found


def write_pictures(summary: Summary, folder: Path) -> list[Path]:
    """Write all figures that show something as PNG; returns their paths."""
    paths = []
    for name, picture in pictures(summary).items():
        if picture.figure is not None:
            write_png(picture.figure, folder / f"{name}.png")
            paths.append(folder / f"{name}.png")
    return paths


def frontier(summary: Summary, workload: str) -> Picture:
    """Output tokens/s against tokens/s of a user, a line an arm; below it adaptive against the best fixed depth."""
    title = f"Throughput and speed a user: {plain(workload)}"
    points = summary.of_workload(workload)
    if not points:
        return Picture(title, None, "Nothing was measured without failures.")
    below = [one for one in summary.against_best_fixed if one.workload == workload]
    rows = (3.0, 1.2) if below else (1.0,)
    subtitle = "medians over passes; ringed: on the frontier"
    figure, axes = canvas(title, subtitle, rows=rows, height=5.4 if below else 4.2, share_x=False)
    handles = _lines(axes[0], summary, points)
    axes[0].set(xlabel="Output tokens/s of one user", ylabel="Output tokens/s of all", xlim=(0, None), ylim=(0, None))
    if below:
        _against_best(axes[1], summary, below)
    legend_below(figure, list(handles.values()), list(handles))
    counts = summary.frontier_counts(workload)
    told = ", ".join(f"{plain(arm)} {on} of {total}" for arm, (on, total) in counts.items())
    return Picture(title, figure, f"Loads at which an arm is on the frontier: {told}.")


def _lines(axes: Axes, summary: Summary, points: Sequence[Point]) -> dict[str, Any]:
    handles = {}
    colours = _colours(summary.arms)
    labelled = next((arm.name for arm in summary.arms if arm.is_adaptive), summary.arms[0].name)
    for number, arm in enumerate(summary.arms):
        own = [point for point in points if point.arm == arm.name]
        if not own:
            continue
        x, y = [point.user.median for point in own], [point.throughput.median for point in own]
        colour, alpha = colours[arm.name]
        marker = MARKERS[number % len(MARKERS)]
        front = 4 if arm.is_adaptive else 3
        handles[plain(arm.name)] = axes.plot(
            x, y, color=colour, alpha=alpha, marker=marker, markersize=4, zorder=front
        )[0]
        ringed = [(point.user.median, point.throughput.median) for point in own if point.on_frontier]
        if ringed:
            axes.plot(*zip(*ringed, strict=True), "o", markersize=9, markerfacecolor="none", color=INK, zorder=front)
        if arm.name == labelled:
            for point in own:
                place = (point.user.median, point.throughput.median)
                axes.annotate(point.load, place, (6, 6), textcoords="offset points", color=MUTED, fontsize=9)
    return handles


def _colours(arms: Sequence[Arm]) -> dict[str, tuple[str, float]]:
    """Colour and opacity: fixed depths go from grey over pale to full blue, all others have colours of their own."""
    deepest = max((arm.fixed_depth or 0 for arm in arms), default=0)
    adaptive = [arm.name for arm in arms if arm.is_adaptive]
    foreign = [arm.name for arm in arms if not arm.is_ours]
    found = {}
    for arm in arms:
        if arm.is_adaptive:
            found[arm.name] = (_ADAPTIVE[adaptive.index(arm.name) % len(_ADAPTIVE)], 1.0)
        elif not arm.is_ours:
            found[arm.name] = (_FOREIGN[foreign.index(arm.name) % len(_FOREIGN)], 1.0)
        elif not arm.fixed_depth:
            found[arm.name] = (GREY, 1.0)
        else:
            found[arm.name] = (BLUE, _PALEST + (1 - _PALEST) * arm.fixed_depth / deepest)
    return found


def _against_best(axes: Axes, summary: Summary, comparisons: Sequence[Comparison]) -> None:
    colours = _colours(summary.arms)
    _ratios(
        axes,
        list(summary.loads),
        {
            arm: {one.load: one.ratio for one in comparisons if one.arm == arm}
            for arm in dict.fromkeys(one.arm for one in comparisons)
        },
        {arm: colour for arm, (colour, _) in colours.items()},
    )
    best = {one.load: one.reference for one in comparisons}
    axes.set_xticks(range(len(summary.loads)), [f"{load}\n{plain(best.get(load, ''))}" for load in summary.loads])
    axes.set(xlabel="Load (below it: the best fixed depth)", ylabel="Adaptive / best")


def gain(summary: Summary, arm: str) -> Picture:
    """Throughput with adaptive verification on over off, by workload, a colour a load."""
    own = [one for one in summary.gains if one.arm == arm]
    title = f"Adaptive verification, on over off: {plain(arm)}"
    figure, (axes,) = canvas(title, f"output tokens/s, paired with {plain(own[0].reference)}; bars: 95% intervals")
    loads = [load for load in summary.loads if any(one.load == load for one in own)]
    colours = {load: COLOURS[number % len(COLOURS)] for number, load in enumerate(loads)}
    series = {load: {one.workload: one.ratio for one in own if one.load == load} for load in loads}
    handles = _ratios(axes, list(summary.workloads), series, colours)
    axes.set_xticks(range(len(summary.workloads)), [plain(name) for name in summary.workloads])
    axes.set(ylabel="On / off")
    legend_below(figure, [handles[load] for load in loads], [f"load {load}" for load in loads])
    told = "; ".join(f"{plain(one.workload)} at {one.load}: {one.ratio}" for one in own)
    return Picture(title, figure, f"{told}.")


def _ratios(
    axes: Axes, places: list[str], series: dict[str, dict[str, Ratio]], colours: dict[str, str]
) -> dict[str, Any]:
    """Points with intervals at named places, the series side by side; a line at 1."""
    axes.axhline(1.0, color=MUTED, linewidth=1.0, zorder=1)
    handles = {}
    for number, (name, ratios) in enumerate(series.items()):
        shift = _WIDTH_OF_GROUP * ((number + 0.5) / len(series) - 0.5)
        known = [(place + shift, ratios[label]) for place, label in enumerate(places) if label in ratios]
        values = [ratio.value for _, ratio in known]
        below = [ratio.value - (ratio.value if ratio.low is None else ratio.low) for _, ratio in known]
        above = [(ratio.value if ratio.high is None else ratio.high) - ratio.value for _, ratio in known]
        handles[name] = axes.errorbar(
            [x for x, _ in known], values, (below, above), color=colours[name], fmt="o", markersize=5, elinewidth=1.2
        )
    axes.set_xlim(-0.5, len(places) - 0.5)
    return handles
