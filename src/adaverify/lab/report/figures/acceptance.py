"""Acceptance by position, a line a dataset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.report.canvas import COLOURS, INK, Picture, canvas, label_positions, legend_below, lines
from adaverify.lab.report.names import dataset_name, drafter_name
from adaverify.lab.trace import Trace

MOST_DATASETS = len(COLOURS)


def acceptance_by_position(trace: Trace) -> Picture:
    """Accepted of the labelled drafts of each position, for the datasets with most of them and for all."""
    title = "Drafts accepted, by position and dataset"
    name = drafter_name(trace)
    reached, accepted = _by_dataset(trace)
    if not reached.any():
        return Picture(f"{title}: {name}", None, "No draft of this drafter has a label.")
    figure, (axes,) = canvas(title, name)
    found = np.flatnonzero(reached.sum(axis=1))
    shown = found[np.argsort(-reached[found].sum(axis=1), kind="stable")][:MOST_DATASETS]
    curves = [_share(accepted[index], reached[index]) for index in shown]
    positions = np.arange(1, reached.shape[1] + 1)
    handles = lines(axes, positions, curves)
    overall = _share(accepted.sum(axis=0), reached.sum(axis=0))
    if len(found) > 1:
        handles += axes.plot(positions, overall, color=INK, linestyle="--", linewidth=1.2)
    axes.set(ylim=(0, 1), ylabel="Accepted / reached")
    label_positions(axes, reached.sum(axis=0), "drafts reached")
    legend_below(figure, handles, [*(dataset_name(trace, index) for index in shown), "all datasets"][: len(handles)])
    return Picture(f"{title}: {name}", figure, _summary(overall, len(shown), len(found)))


def _by_dataset(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labelled and accepted drafts by dataset and position, each [datasets, K]."""
    drafts = trace.labelled
    shape = len(trace.datasets), trace.num_speculative_tokens
    cell = drafts.dataset.astype(np.int64) * shape[1] + drafts.position - 1
    size = shape[0] * shape[1]
    reached = np.bincount(cell, minlength=size)
    accepted = np.bincount(cell[drafts.accepted], minlength=size)
    return reached.reshape(shape), accepted.reshape(shape)


def _share(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """``part / whole``, nan where there is nothing to share."""
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _summary(overall: NDArray[np.float64], shown: int, found: int) -> str:
    values = ", ".join("no labels" if np.isnan(share) else f"{share:.3f}" for share in overall)
    which = f" The {shown} datasets with most labels are shown, of {found}." if shown < found else ""
    return f"Accepted by position over all datasets: {values}.{which}"
