from __future__ import annotations

import numpy as np
import pytest
from tests.lab.report.traces import changed, with_runs
from tests.lab.synthetic import COSTS

from adaverify.lab.report.bins import Bins
from adaverify.lab.report.figures import FAMILIES, budget_over_load, cost_curves
from adaverify.lab.trace import Trace
from adaverify.policy.cost import CostCurve, CostTable


def without_steps(trace: Trace) -> Trace:
    return Trace(trace.runs, trace.datasets, trace.drafts, trace.steps.select(slice(0, 0)))


def test_bins_keep_few_sizes_apart_and_group_many():
    sizes = np.array([3, 1, 3, 8])
    few = Bins.of(sizes, most=3)
    assert (few.size.tolist(), few.count.tolist()) == ([1, 3, 8], [1, 2, 1])
    assert few.sum(np.array([1.0, 2.0, 4.0, 8.0])).tolist() == [2, 5, 8]
    assert few.quantiles(np.array([1.0, 2.0, 4.0, 8.0]), (0.5,)).tolist() == [[2, 2.5, 8]]
    many = Bins.of(np.random.default_rng(0).permutation(1000), most=10)
    assert ((many.count >= 99) & (many.count <= 101)).all()
    np.testing.assert_allclose(many.size, np.arange(10) * 100 + 49.5, atol=1)


def test_drafts_per_request_at_each_load(trace):
    load = np.where(trace.steps.step % 3 == 0, 2, 8)
    step = {"num_requests": load, "max_draft_budget": 4 * load, "draft_budget": 3 * load, "num_admitted": load * 2,
            "num_accepted": load}  # fmt: skip
    picture = budget_over_load(with_runs(changed(trace, steps=step), {"trimmed": True}))
    axes, strip = picture.figure.axes
    assert [line.get_xdata().tolist() for line in axes.lines] == [[2, 8]] * 4
    assert [line.get_ydata().tolist() for line in axes.lines] == [[4, 4], [3, 3], [2, 2], [1, 1]]
    assert [bar.get_height() for bar in strip.patches] == [100, 200]
    assert picture.summary == (
        "300 steps of 2 to 8 requests; drafts per request over all: drafted 4.00, budget 3.00, admitted 2.00, "
        "accepted 1.00."
    )


def test_a_mean_at_a_load_weighs_steps_alike(trace):
    budget = np.where(trace.steps.step < 100, 8, 32)
    axes, _ = budget_over_load(changed(trace, steps={"draft_budget": budget})).figure.axes
    assert axes.lines[1].get_ydata().tolist() == [pytest.approx((1 + 4 + 4) / 3)]


def test_runs_that_verified_everything_do_not_blur_the_budget_of_those_that_trimmed(two_runs):
    mixed = with_runs(two_runs, {"trimmed": True}, {"trimmed": False})
    picture = budget_over_load(mixed)
    assert picture.summary.startswith("120 steps of 8 requests")
    assert "(--no-trim) are left out" in picture.summary
    untrimmed = budget_over_load(two_runs)
    assert untrimmed.summary.startswith("180 steps of 4 to 8 requests")
    assert "Every draft was verified (--no-trim)" in untrimmed.summary


def test_load_without_steps_is_words(trace):
    picture = budget_over_load(without_steps(trace))
    assert (picture.figure, picture.summary) == (None, "No step of this drafter was recorded.")


def test_cost_curves_follow_the_table_and_its_stairs(trace):
    stairs = CostTable(verify=CostCurve((1, 1600, 3000), (10.0, 12.0, 20.0), step_up_to=1600), draft=COSTS.draft)
    above, below = cost_curves(with_runs(without_steps(trace), {"costs": stairs.to_dict()})).figure.axes
    curve = dict(zip(*above.lines[0].get_data(), strict=True))
    assert [curve[size] for size in (1, 2, 1600, 1601, 3000)] == [10, 12, 12, 20, 20]
    draft = dict(zip(*below.lines[0].get_data(), strict=True))
    assert draft[8] == pytest.approx(COSTS.draft.table(8)[8].item())


def test_measured_times_are_medians_by_size_with_their_spread(trace):
    size = np.where(trace.steps.step % 2 == 0, 10, 20)
    milliseconds = size + (np.arange(300) // 2 % 11) ** 2
    measured = changed(trace, steps={"num_packed_tokens": size, "verify_ms": milliseconds})
    above, _ = cost_curves(measured).figure.axes
    points, _, (bars,) = above.containers[0].lines
    assert points.get_xdata().tolist() == [10, 20]
    medians = [np.median(milliseconds[size == x]) for x in (10, 20)]
    assert points.get_ydata().tolist() == medians
    (low, high), _ = ([y for _, y in segment] for segment in bars.get_segments())
    assert (low, high) == tuple(np.quantile(milliseconds[size == 10], (0.1, 0.9)))


def test_each_step_is_compared_with_the_table_of_its_own_run(two_runs):
    slow = CostTable(verify=CostCurve((1,), (30.0,)), draft=CostCurve((1,), (3.0,)))
    fast = CostTable(verify=CostCurve((1,), (10.0,)), draft=CostCurve((1,), (1.0,)))
    tables = with_runs(two_runs, {"costs": slow.to_dict()}, {"costs": fast.to_dict()})
    exact = np.where(two_runs.steps.run == 0, 30, 10)
    picture = cost_curves(changed(tables, steps={"verify_ms": exact, "draft_ms": exact / 20}))
    assert picture.summary == (
        "Target's pass: 180 times, median error of the table 0.0%. "
        "Drafting: 180 times, median error of the table 100.0%."
    )
    above, _ = picture.figure.axes
    assert [set(line.get_ydata()) for line in above.lines[:2]] == [{30.0}, {10.0}]


def test_runs_of_one_table_share_one_curve(two_runs):
    above, _ = cost_curves(two_runs).figure.axes
    assert sum(line.get_linestyle() == "-" for line in above.lines) == 1


def test_times_without_a_table_and_a_table_without_times_are_drawn(trace):
    no_table = cost_curves(with_runs(trace, {"costs": None}))
    assert "300 times, no table to compare with" in no_table.summary
    no_times = cost_curves(without_steps(trace))
    assert no_times.summary == "Target's pass: no times recorded. Drafting: no times recorded."
    assert no_times.figure.axes[0].lines[0].get_xdata()[-1] == COSTS.verify.sizes[-1]


def test_lines_are_said_to_be_the_costs_that_are_drawn():
    # with live costs the budget was chosen by others
    (family,) = [family for family in FAMILIES if family.key == "costs"]
    assert "Lines are the costs measured at start" in family.reading


def test_times_that_were_not_measured_are_left_out(trace):
    verify_ms = np.where(trace.steps.step < 100, 0, np.where(trace.steps.step < 200, np.nan, 12))
    assert "Target's pass: 100 times" in cost_curves(changed(trace, steps={"verify_ms": verify_ms})).summary


def test_the_curve_of_whole_blocks_is_compared_with_whole_blocks_where_depth_has_a_price(trace):
    positions = np.where(trace.drafts.step < 100, np.minimum(trace.drafts.position, 3), trace.drafts.position)
    cut = changed(trace, drafts={"position": positions})
    assert "Drafting: 300 times" in cost_curves(cut).summary
    by_depth = CostTable(COSTS.verify, COSTS.draft, CostCurve((1,), (0.5,)))
    assert "Drafting: 200 times" in cost_curves(with_runs(cut, {"costs": by_depth.to_dict()})).summary


def test_a_drafter_that_costs_nothing_says_so_in_its_panel(trace):
    free = with_runs(changed(trace, steps={"draft_ms": [0]}), {"costs": CostTable(COSTS.verify).to_dict()})
    _, below = cost_curves(free).figure.axes
    assert [text.get_text() for text in below.texts] == ["Nothing recorded."]


def test_costs_without_table_and_times_are_words(trace):
    picture = cost_curves(with_runs(without_steps(trace), {"costs": None}))
    assert picture.figure is None
    assert picture.summary == "No cost table and no times were recorded for this drafter."
