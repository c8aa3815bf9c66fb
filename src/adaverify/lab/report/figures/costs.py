"""What a step cost, against the table that the budget was chosen by."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from adaverify.lab.report.bins import Bins
from adaverify.lab.report.canvas import BLUE, MUTED, ORANGE, Picture, canvas, legend_below
from adaverify.lab.report.names import drafter_name
from adaverify.lab.trace import Trace
from adaverify.policy.cost import CostCurve

MOST_POINTS = 30
_CURVE_POINTS = 200


def cost_curves(trace: Trace) -> Picture:
    """The target's pass by packed tokens above, drafting by requests below."""
    title = "Cost of verifying and of drafting"
    name = drafter_name(trace)
    steps = trace.steps
    tables = [run.cost_table for run in trace.runs]
    verify_curves = [table.verify if table else None for table in tables]
    draft_curves = [table.draft if table else None for table in tables]
    verify = _Part(verify_curves, steps.run, steps.num_packed_tokens, steps.verify_ms)
    draft = _Part(draft_curves, steps.run, steps.num_requests, np.where(_drafted_whole(trace), steps.draft_ms, np.nan))
    if verify.is_empty and draft.is_empty:
        return Picture(f"{title}: {name}", None, "No cost table and no times were recorded for this drafter.")
    figure, (above, below) = canvas(title, name, rows=(3, 2), height=4.6, share_x=False)
    handles = _draw(above, verify) | _draw(below, draft)
    above.set(ylabel="Target's pass (ms)", xlabel="Packed tokens")
    below.set(ylabel="Drafting (ms)", xlabel="Requests")
    legend_below(figure, list(handles.values()), list(handles))
    return Picture(f"{title}: {name}", figure, f"Target's pass: {verify.summary()}. Drafting: {draft.summary()}.")


def _drafted_whole(trace: Trace) -> NDArray[np.bool_]:
    """Steps whose drafting the curve of whole blocks is about: where a pass costs by depth, those to depth K only."""
    steps, drafts = trace.steps, trace.drafts
    by_depth = np.array([bool(run.cost_table and run.cost_table.draft_first) for run in trace.runs])[steps.run]
    if not by_depth.any():
        return ~by_depth
    last = np.array([run.num_speculative_tokens for run in trace.runs])[drafts.run] == drafts.position
    whole = set(zip(drafts.run[last].tolist(), drafts.step[last].tolist(), strict=True))
    reached = [key in whole for key in zip(steps.run.tolist(), steps.step.tolist(), strict=True)]
    return ~by_depth | np.array(reached)


class _Part:
    """One part of a step: its cost curve in each run, and the times that steps took.

    Attributes
    ----------
    curves : list of CostCurve or None
        One a run.
    run, sizes : int [N]
        Of the steps whose time was recorded.
    milliseconds : float64 [N]
    """

    def __init__(
        self, curves: list[CostCurve | None], run: NDArray[Any], sizes: NDArray[Any], milliseconds: NDArray[Any]
    ) -> None:
        timed = np.isfinite(milliseconds) & (milliseconds > 0)
        self.curves = curves
        self.run, self.sizes = run[timed], sizes[timed]
        self.milliseconds = milliseconds[timed].astype(np.float64)

    @property
    def distinct(self) -> list[CostCurve]:
        """The curves without repetitions: runs of one server share theirs."""
        return list(dict.fromkeys(curve for curve in self.curves if curve is not None))

    @property
    def is_empty(self) -> bool:
        """Neither a curve nor a time."""
        return not self.distinct and not len(self.sizes)

    @property
    def limit(self) -> int:
        """Where the axis ends: a little beyond the largest step, or the end of the curves."""
        if len(self.sizes):
            return int(np.ceil(1.1 * self.sizes.max()))
        return max(curve.sizes[-1] for curve in self.distinct)

    def summary(self) -> str:
        """How far the tables are from what was measured, each step against the table of its run."""
        if not len(self.sizes):
            return "no times recorded"
        errors = [np.zeros(0)]
        for index, curve in enumerate(self.curves):
            if curve is not None:
                own = self.run == index
                errors.append(np.abs(curve.table(self.limit).numpy()[self.sizes[own]] / self.milliseconds[own] - 1))
        found = np.concatenate(errors)
        compared = f"median error of the table {np.median(found):.1%}" if len(found) else "no table to compare with"
        return f"{len(self.sizes):,} times, {compared}"


def _draw(axes: Axes, part: _Part) -> dict[str, Any]:
    """Curves and medians of one part; the handles by their labels."""
    handles: dict[str, Any] = {}
    if part.is_empty:
        axes.text(0.5, 0.5, "Nothing recorded.", transform=axes.transAxes, ha="center", va="center", color=MUTED)
        axes.set(xticks=[], yticks=[])
        return handles
    for curve in part.distinct:
        sizes = _curve_sizes(curve, part.limit)
        handles["cost table"] = axes.plot(sizes, curve.table(part.limit).numpy()[sizes], color=BLUE)[0]
    if len(part.sizes):
        bins = Bins.of(part.sizes, MOST_POINTS)
        low, middle, high = bins.quantiles(part.milliseconds, (0.1, 0.5, 0.9))
        handles["measured: median, 10% to 90%"] = axes.errorbar(
            bins.size, middle, (middle - low, high - middle), color=ORANGE, fmt="o", markersize=4, elinewidth=1
        )
    axes.set(xlim=(0, part.limit), ylim=(0, 1.05 * axes.get_ylim()[1]))
    axes.locator_params(axis="x", integer=True)
    return handles


def _curve_sizes(curve: CostCurve, limit: int) -> NDArray[np.int64]:
    """Enough sizes for a smooth line, with both sides of each stair among them."""
    grid = np.linspace(1, limit, _CURVE_POINTS).round().astype(np.int64)
    measured = np.array(curve.sizes, dtype=np.int64)
    sizes = np.unique(np.concatenate([grid, measured, measured + 1]))
    return sizes[sizes <= limit]
