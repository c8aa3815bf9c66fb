from __future__ import annotations

import numpy as np
from tests.lab.report.traces import changed, with_runs

from adaverify.lab.report.tables import overview
from adaverify.lab.trace import Trace


def rows(trace: Trace, caption: str) -> list[dict[str, str]]:
    (table,) = (table for table in overview(trace) if table.caption == caption)
    return [dict(zip(table.headings, row, strict=True)) for row in table.rows]


def test_runs_are_counted_apart(two_runs):
    first, second = rows(two_runs, "Runs")
    own = two_runs.drafts.select(two_runs.drafts.run == 1)
    assert first["Run"] == "first"
    assert (second["Steps"], second["Requests"], second["Drafts"], second["K"]) == ("60", "12", "960", "4")
    assert second["Labelled"] == f"{(own.label >= 0).sum():,}"
    assert second["Accepted of labelled"] == f"{own.label[own.label >= 0].mean():.3f}"


def test_settings_say_what_the_run_was(two_runs):
    versions = {"adaverify": "0.1.0", "torch": None}
    first, second = rows(
        with_runs(
            two_runs,
            {"trimmed": True, "started": "2026-11-30T05:12:33Z", "versions": versions, "drafts_in_parallel": True},
            {"started": "yesterday", "costs": None, "confidence": "head"},
        ),
        "Settings",
    )
    assert (first["Verified"], second["Verified"]) == ("what the budget allowed", "every draft")
    assert (first["Started (UTC)"], second["Started (UTC)"]) == ("2026-11-30 05:12", "yesterday")
    assert (first["Versions"], second["Versions"]) == ("adaverify 0.1.0", "unknown")
    assert (first["Cost table"], second["Cost table"]) == ("4 sizes", "none")
    assert (first["Drafting"], second["Drafting"]) == (
        "probabilistic, one pass a block",
        "probabilistic, one pass a token",
    )
    assert second["Confidence"] == "head"


def test_datasets_come_by_size_and_absent_ones_not_at_all(trace):
    drafts = changed(trace, {"dataset": np.where(trace.drafts.request % 4 == 0, 0, 1)})
    found = rows(Trace(drafts.runs, ("maths", "chat", "absent"), drafts.drafts, drafts.steps), "Datasets")
    assert [(row["Dataset"], row["Drafts"]) for row in found] == [("chat", "7,200"), ("maths", "2,400")]


def test_sampling_settings_are_counted_in_pairs(trace):
    position = trace.drafts.position
    settings = {
        "temperature": np.where(position == 1, 0, 0.7),
        "top_p": np.where(position == 2, 0.9, 1.0),
        "telling": position != 4,
    }
    found = rows(changed(trace, settings), "Sampling")
    assert [(row["Temperature"], row["Top-p"], row["Drafts"]) for row in found] == [
        ("0.7", "1", "4,800"),
        ("0 (greedy)", "1", "2,400"),
        ("0.7", "0.9", "2,400"),
    ]
    assert [row["Not telling (penalties, bias)"] for row in found] == ["2,400", "0", "0"]


def test_nothing_labelled_is_no_share(trace):
    assert rows(changed(trace, {"label": [-1]}), "Runs")[0]["Accepted of labelled"] == "no labels"


def test_very_many_settings_are_cut_with_a_count_of_the_rest(trace):
    found = rows(changed(trace, {"temperature": np.arange(len(trace.drafts)) % 50 / 10}), "Sampling")
    assert len(found) == 20
    assert found[-1]["Temperature"] == "… 31 more"
