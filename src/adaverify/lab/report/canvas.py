"""What all figures share: colours, type, a canvas with its titles, and the picture that a figure function returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from adaverify.lab.report.names import folded, shortened

# The page gives these three another value in the dark; every other colour has a contrast of 3 to 1 on both grounds.
INK, MUTED, LINE = "#1c2128", "#57606a", "#d4dae0"
BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, OLIVE, GREY = (
    "#2a7fd0", "#d4610a", "#1b8a5a", "#9a5fc0", "#d1495b", "#128a99", "#8a7a10", "#75808a",
)  # fmt: skip
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, TEAL, OLIVE, GREY)
MARKERS = "osD^vP*X"
_NESTED = (1.9, 1.4, 1.0, 0.8)

WIDTH = 5.2
_LETTERS_A_LINE = 58
_LETTERS_OF_LEGEND = 56
_LINE_HEIGHT = 0.2
# Typed loosely, since matplotlib lists every key it knows as a literal.
STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": INK,
    # Names are the user's: a dollar sign in one is no formula.
    "text.parse_math": False,
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 10.5,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "adaverify",
}


@dataclass(frozen=True)
class Picture:
    """One figure of the report, or the words that stand in its place.

    Attributes
    ----------
    title : str
        What the figure shows, of which drafter.
    figure : Figure, optional
        None where the trace has nothing to draw.
    summary : str
        The figure's numbers in words, or why there is no figure.
    """

    title: str
    figure: Figure | None
    summary: str


def canvas(
    title: str, subtitle: str, rows: Sequence[float] = (1.0,), height: float = 3.9, share_x: bool = True
) -> tuple[Figure, list[Axes]]:
    """An empty figure with its titles and one column of axes.

    Parameters
    ----------
    title, subtitle : str
        What is seen, and of which drafter.
    rows : sequence of float
        Relative height of each of the axes.
    height : float
        Inches without the titles and the legend; all figures are equally wide.
    share_x : bool
    """
    text = folded(subtitle, _LETTERS_A_LINE)
    num_lines = 1 + len(text.splitlines())
    figure = Figure((WIDTH, height + num_lines * _LINE_HEIGHT), layout="constrained")
    axes = figure.subplots(len(rows), 1, sharex=share_x, height_ratios=list(rows), squeeze=False)[:, 0]
    # One text has one weight: the bold title keeps lines free for the other, which hangs on to it.
    above = figure.suptitle(title + "\n" * (num_lines - 1), x=0.01, ha="left")
    below = axes[0].annotate(text, (0, 0), xycoords=above, va="bottom", color=MUTED, fontsize=10, annotation_clip=False)
    below.set_in_layout(False)
    return figure, list(axes)


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """A legend under the axes, in as many columns as the labels leave room for; the figure grows by its rows."""
    short = [shortened(label, 40) for label in labels]
    columns = max(1, min(len(short), _LETTERS_OF_LEGEND // (max(map(len, short), default=0) + 6)))
    figure.set_figheight(figure.get_figheight() + -(-len(short) // columns) * _LINE_HEIGHT)
    figure.legend(handles, short, loc="outside lower left", ncols=columns, columnspacing=1.4, handlelength=1.8)


def lines(
    axes: Axes, x: ArrayLike, curves: Sequence[ArrayLike], colours: Sequence[str] = COLOURS, nested: bool = False
) -> list[Artist]:
    """One line with markers a curve; a nan leaves a gap.

    Parameters
    ----------
    axes : Axes
    x : array_like, shape [N]
    curves : sequence of array_like, shape [N]
        At most as many as there are colours.
    colours : sequence of str
    nested : bool
        Draw each curve thinner than the one below it, so that curves that coincide are all seen.
    """
    scales = _NESTED if nested else [1.0] * len(colours)
    return [
        axes.plot(x, y, color=colour, marker=marker, linewidth=1.8 * scale, markersize=5 * scale)[0]
        for y, colour, marker, scale in zip(curves, colours, MARKERS, scales, strict=False)
    ]


def strip_of_counts(axes: Axes, what: str) -> None:
    """The low panel that says how many drafts or steps each point above it stands for."""
    axes.set(ylabel=what, ylim=(0, None))
    axes.locator_params(axis="y", nbins=2, integer=True)
    axes.yaxis.set_major_formatter(lambda count, _: compact(count))


def label_positions(axes: Axes, counts: ArrayLike, what: str) -> None:
    """Ticks at positions 1 to K, each with its count below."""
    numbers = [int(count) for count in np.asarray(counts)]
    every = -(-len(numbers) // 10)
    ticks = range(1, len(numbers) + 1, every)
    axes.set_xticks(list(ticks), [f"{i}\n{compact(numbers[i - 1])}" for i in ticks])
    axes.set_xlim(0.7, len(numbers) + 0.3)
    axes.set_xlabel(f"Position in the block (below it: {what})")


def compact(number: float) -> str:
    """A count in three digits: 950, 12.3k, 1.2M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"
