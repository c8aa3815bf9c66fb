from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console
from tests.lab.bench.support import BASE, FIXED, cell, settings

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.show import tables, warnings
from adaverify.lab.bench.summarize import summarize

ARMS = (
    Arm("k0"),
    Arm("k1", FIXED.model_copy(update={"num_speculative_tokens": 1})),
    Arm("k3", FIXED),
    Arm("av", BASE),
    Arm("other", url="http://x"),
)


@pytest.fixture
def chosen(tmp_path):
    return settings(tmp_path, ARMS, loads=(Load(1),))


def cells() -> list[dict]:
    """Two passes; the machine is half as fast in the second."""
    speeds = {"k0": (100, 4.0), "k1": (120, 5.0), "k3": (90, 6.0), "av": (132, 5.5), "other": (200, 3.0)}
    return [
        cell(arm, number, total / (1 + number), user / (1 + number))
        for number in (0, 1)
        for arm, (total, user) in speeds.items()
    ]


def test_ratios_gains_and_the_best_fixed_depth(chosen):
    summary = summarize(chosen, cells())
    points = {point.arm: point for point in summary.points}
    assert points["k1"].ratio.value == pytest.approx(1.2)
    # the pairs cancel the slow pass: no spread is left
    assert points["k1"].ratio.low == pytest.approx(1.2)
    assert (points["k0"].throughput.median, points["k0"].throughput.low, points["k0"].throughput.high) == (75, 50, 100)
    (best,) = summary.against_best_fixed
    # a foreign server is no fixed depth, however fast
    assert (best.arm, best.reference) == ("av", "k1")
    assert best.ratio.value == pytest.approx(1.1)
    (gain,) = summary.gains
    assert (gain.arm, gain.reference) == ("av", "k3")
    assert gain.ratio.value == pytest.approx(132 / 90)


def test_the_frontier_is_what_nobody_beats_in_both(chosen):
    found = {point.arm: point.on_frontier for point in summarize(chosen, cells()).points}
    assert found == {"k0": False, "k1": False, "k3": True, "av": True, "other": True}


def test_an_arms_own_other_loads_do_not_take_it_off_the_frontier(tmp_path):
    both = settings(tmp_path, ARMS[:2], loads=(Load(1), Load(3)))
    rows = [cell("k0", 0, 10.0, 10.0), cell("k0", 0, 20.0, 11.0, load="3"), cell("k1", 0, 5.0, 5.0)]
    summary = summarize(both, rows)
    assert summary.frontier_counts("maths") == {"k0": (2, 2), "k1": (0, 1)}


def test_measurements_with_failures_count_as_failed_and_nothing_else(chosen):
    rows = cells()
    rows[3] |= {"failed": 2}
    summary = summarize(chosen, rows)
    assert (summary.failed, summary.incomplete) == (2, 1)
    (best,) = summary.against_best_fixed
    assert best.ratio.count == 1
    assert "2 requests failed" in warnings(summary)[0]


def test_drafts_a_round_are_over_all_passes(chosen):
    drafts = {"drafted": [10, 10], "admitted": [10, 2], "accepted": [8, 1]}
    rows = [cell("av", 0, 1.0, rounds=10, **drafts), cell("av", 1, 1.0, rounds=30, **drafts)]
    (point,) = summarize(chosen, rows).points
    assert point.per_round == {"drafted": 1.0, "admitted": 0.6, "accepted": 0.45}
    foreign = [cell("other", 0, 1.0, rounds=10, drafted=None, admitted=None, accepted=[5])]
    assert summarize(chosen, foreign).points[0].per_round == {"accepted": 0.5}


def test_disturbance_preemptions_and_single_passes_are_told(chosen):
    told = warnings(summarize(chosen, [cell("av", 0, 1.0, other_cpu_share=0.3, preemptions=4)]))
    assert [any(word in one for one in told) for word in ("30%", "4 requests were sent back", "no interval")] == [
        True
    ] * 3
    assert warnings(summarize(chosen, cells())) == []


def test_tables_and_json_hold_the_numbers(chosen):
    summary = summarize(chosen, cells())
    assert json.loads(json.dumps(summary.to_dict(), allow_nan=False))["frontier"]["maths"]["av"] == [1, 1]
    text = StringIO()
    console = Console(file=text, width=200)
    for table in tables(summary, chosen, ["ttft"]):
        console.print(table)
    shown = text.getvalue()
    assert all(told in shown for told in ("99.0 (66.0 to 132.0)", "1.320 [1.320, 1.320]", "1.100", "av *", "5, 9"))
