from __future__ import annotations

import pytest
from tests.lab.bench.support import BASE, FIXED, cell, prompt_file, settings

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.pictures import frontier, gain, pictures, write_pictures
from adaverify.lab.bench.summarize import summarize
from adaverify.lab.bench.summary import Summary
from adaverify.lab.bench.workload import read_workloads

ARMS = (Arm("k0"), Arm("k3", FIXED), Arm("av_$x", BASE), Arm("other", url="http://x"))
SPEEDS = {"k0": (100, 4.0), "k3": (90, 6.0), "av_$x": (132, 5.5), "other": (200, 3.0)}


@pytest.fixture
def summary(tmp_path) -> Summary:
    """Two workloads at loads 1 and 8, three passes; the load halves the speed of a user."""
    files = [str(prompt_file(tmp_path, name, 9)) for name in ("maths", "chat")]
    chosen = settings(tmp_path, ARMS, workloads=read_workloads(files, apart=True), loads=(Load(1), Load(8)))
    rows = [
        cell(arm, number, (total + number) * growth, user / growth, load=load, workload=workload)
        for number in range(3)
        for load, growth in (("1", 1), ("8", 2))
        for workload in ("maths", "chat")
        for arm, (total, user) in SPEEDS.items()
    ]
    return summarize(chosen, rows)


def test_the_frontier_has_a_line_an_arm_and_a_ring_where_nobody_is_better(summary):
    picture = frontier(summary, "maths")
    above, below = picture.figure.axes
    lines = {tuple(line.get_xdata()): list(line.get_ydata()) for line in above.lines if line.get_linestyle() != "None"}
    assert lines[5.5, 2.75] == [133, 266]
    assert len(lines) == 4
    rings = {x for line in above.lines if line.get_linestyle() == "None" for x in line.get_xdata()}
    assert rings == {point.user.median for point in summary.of_workload("maths") if point.on_frontier}
    assert [text.get_text() for text in below.get_xticklabels()] == ["1\nk0", "8\nk0"]
    assert picture.summary.startswith("Loads at which an arm is on the frontier: k0 ")


def test_gains_stand_by_workload_with_a_colour_a_load(summary):
    picture = gain(summary, "av_$x")
    (axes,) = picture.figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["maths", "chat"]
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == ["load 1", "load 8"]
    assert "maths at 1: 1.46" in picture.summary


def test_every_figure_is_written(summary, tmp_path):
    names = [path.name for path in write_pictures(summary, tmp_path)]
    assert names == ["frontier-maths.png", "frontier-chat.png", "gain-av-x.png"]
    assert all((tmp_path / name).stat().st_size > 1000 for name in names)


def test_without_fixed_depths_and_without_results(tmp_path):
    chosen = settings(tmp_path, (ARMS[3],), loads=(Load(1),))
    (picture,) = pictures(summarize(chosen, [cell("other", 0, 5.0)])).values()
    assert len(picture.figure.axes) == 1
    (nothing,) = pictures(summarize(chosen, [cell("other", 0, 5.0, failed=1)])).values()
    assert nothing.figure is None
    assert write_pictures(summarize(chosen, []), tmp_path) == []
