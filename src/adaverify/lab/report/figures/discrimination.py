"""AUC by position: how well each score tells which drafts will be accepted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.evaluate.metrics import auc
from adaverify.lab.report.canvas import MUTED, Picture, canvas, label_positions, legend_below, lines
from adaverify.lab.report.names import drafter_name
from adaverify.lab.trace import Drafts, Trace


def auc_by_position(trace: Trace) -> Picture:
    """AUC of the prediction as served, raw q_max, draft entropy and a head, at each position."""
    title = "AUC of each score, by position"
    name = drafter_name(trace)
    drafts = trace.labelled
    K = trace.num_speculative_tokens
    curves = {label: _by_position(score, drafts, K) for label, score in _scores(trace).items()}
    counts = np.bincount(drafts.position, minlength=K + 1)[1:]
    if np.isnan(list(curves.values())).all():
        why = "At no position were some drafts accepted and some rejected, so AUC is undefined."
        return Picture(f"{title}: {name}", None, why if len(drafts) else "No draft of this drafter has a label.")
    figure, (axes,) = canvas(title, name)
    axes.axhline(0.5, color=MUTED, linestyle=":", linewidth=1)
    handles = lines(axes, np.arange(1, K + 1), list(curves.values()), nested=True)
    axes.set(ylim=(min(0.45, float(np.nanmin(list(curves.values()))) - 0.05), 1), ylabel="AUC")
    label_positions(axes, counts, "labelled drafts")
    legend_below(figure, handles, list(curves))
    return Picture(f"{title}: {name}", figure, _summary(curves))


def _scores(trace: Trace) -> dict[str, NDArray[np.floating]]:
    """Scores of the labelled drafts, larger for the likelier accepted."""
    drafts = trace.labelled
    sources = {run.confidence for run in trace.runs}
    scores = {
        f"as served ({sources.pop()})" if len(sources) == 1 else "as served": drafts.prediction,
        "raw q_max": drafts.logit_q_max,
        "low draft entropy": -drafts.entropy,
    }
    # Where the head served, its curve is the first one already.
    if np.isfinite(drafts.head_logit).any() and any(run.confidence != "head" for run in trace.runs):
        scores["confidence head"] = drafts.head_logit
    return scores


def _by_position(score: NDArray[np.floating], drafts: Drafts, K: int) -> NDArray[np.float64]:
    """AUC at positions 1 to K; nan where it is undefined."""
    values = np.full(K, np.nan)
    known = np.isfinite(score)
    for i in range(K):
        rows = known & (drafts.position == i + 1)
        value = auc(score[rows], drafts.label[rows]) if rows.any() else None
        values[i] = np.nan if value is None else value
    return values


def _summary(curves: dict[str, NDArray[np.float64]]) -> str:
    def numbers(values: NDArray[np.float64]) -> str:
        return ", ".join("undefined" if np.isnan(value) else f"{value:.3f}" for value in values)

    return " ".join(f"{label[0].upper()}{label[1:]}: {numbers(values)}." for label, values in curves.items())
