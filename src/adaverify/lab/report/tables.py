"""What was recorded, in tables: runs, their settings, datasets, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from adaverify.lab.report.names import dataset_name, plain
from adaverify.lab.trace import RunInfo, Trace

MOST_ROWS = 20


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes
    ----------
    caption : str
    headings : tuple of str
    rows : tuple of tuple of str
        As long as ``headings`` each.
    """

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def overview(trace: Trace) -> list[Table]:
    """All tables of the section on what was recorded."""
    return [_runs(trace), _settings(trace), _datasets(trace), _sampling(trace)]


def _runs(trace: Trace) -> Table:
    drafts, steps = trace.drafts, trace.steps
    headings = ("Run", "Drafter", "Method", "Target", "K", "Steps", "Requests", "Drafts", "Admitted", "Labelled",
                "Accepted of labelled")  # fmt: skip
    rows = []
    for index, run in enumerate(trace.runs):
        own = drafts.select(drafts.run == index)
        names = (run.run, run.drafter, run.method, run.target)
        counts = (int((steps.run == index).sum()), len(np.unique(own.request)), len(own), int(own.admitted.sum()))
        rows.append(
            (
                *map(plain, names),
                str(run.num_speculative_tokens),
                *(f"{count:,}" for count in counts),
                *_labels(own.is_labelled, own.accepted),
            )
        )
    return Table("Runs", headings, tuple(rows))


def _settings(trace: Trace) -> Table:
    headings = ("Run", "Started (UTC)", "Seats", "Verified", "Confidence", "Drafting", "Rejection sampling",
                "Cost table", "Versions")  # fmt: skip
    return Table("Settings", headings, tuple(_settings_of(run) for run in trace.runs))


def _settings_of(run: RunInfo) -> tuple[str, ...]:
    sizes = f"{len(run.cost_table.verify.sizes)} sizes" if run.cost_table else "none"
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version)
    return (
        plain(run.run),
        _date(run.started),
        str(run.max_num_seqs),
        "what the budget allowed" if run.trimmed else "every draft",
        plain(run.confidence),
        f"{plain(run.draft_sample_method)}, {'one pass a block' if run.drafts_in_parallel else 'one pass a token'}",
        plain(run.rejection_sample_method),
        sizes,
        plain(versions) if versions else "unknown",
    )


def _datasets(trace: Trace) -> Table:
    drafts = trace.drafts
    size = len(trace.datasets)
    counts, labelled, accepted = (
        np.bincount(drafts.dataset[rows], minlength=size)
        for rows in (slice(None), drafts.is_labelled, drafts.is_labelled & drafts.accepted)
    )
    rows = [
        (dataset_name(trace, i), f"{counts[i]:,}", f"{labelled[i]:,}", _share(int(accepted[i]), int(labelled[i])))
        for i in np.argsort(-counts, kind="stable")
        if counts[i]
    ]
    return Table("Datasets", ("Dataset", "Drafts", "Labelled", "Accepted of labelled"), _capped(rows))


def _sampling(trace: Trace) -> Table:
    drafts = trace.drafts
    # One number a pair of settings: sorting pairs of millions of rows takes seconds.
    temperatures, temperature = np.unique(drafts.temperature, return_inverse=True)
    top_ps, top_p = np.unique(drafts.top_p, return_inverse=True)
    pair = temperature * len(top_ps) + top_p
    size = len(temperatures) * len(top_ps)
    counts, bent, labelled, accepted = (
        np.bincount(pair[rows], minlength=size)
        for rows in (slice(None), ~drafts.telling, drafts.is_labelled, drafts.is_labelled & drafts.accepted)
    )
    rows = [
        (
            f"{temperatures[i // len(top_ps)]:g}" + " (greedy)" * bool(temperatures[i // len(top_ps)] == 0),
            f"{top_ps[i % len(top_ps)]:g}",
            f"{counts[i]:,}",
            f"{bent[i]:,}",
            f"{labelled[i]:,}",
            _share(int(accepted[i]), int(labelled[i])),
        )
        for i in np.argsort(-counts, kind="stable")
        if counts[i]
    ]
    headings = ("Temperature", "Top-p", "Drafts", "Not telling (penalties, bias)", "Labelled", "Accepted of labelled")
    return Table("Sampling", headings, _capped(rows))


def _date(started: str) -> str:
    """To the minute; as it stands where it is no date."""
    try:
        return datetime.fromisoformat(started.replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return plain(started) if started else "unknown"


def _labels(labelled: np.ndarray, accepted: np.ndarray) -> tuple[str, str]:
    count = int(labelled.sum())
    return f"{count:,}", _share(int((labelled & accepted).sum()), count)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "no labels"


def _capped(rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """The first rows, and how many were left out."""
    if len(rows) <= MOST_ROWS:
        return tuple(rows)
    rest = f"… {len(rows) - MOST_ROWS + 1} more"
    return (*rows[: MOST_ROWS - 1], (rest, *[""] * (len(rows[0]) - 1)))
