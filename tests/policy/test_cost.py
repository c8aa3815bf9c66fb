from __future__ import annotations

import json

import pytest
import torch

from adaverify.errors import ConfigError
from adaverify.policy import CostCurve, CostTable


def test_interpolates_between_and_extends_beyond_the_measured_sizes() -> None:
    table = CostCurve((2, 4, 8), (10.0, 20.0, 40.0)).table(10)
    assert table.dtype == torch.float64
    assert table.tolist() == pytest.approx([10, 10, 10, 15, 20, 25, 30, 35, 40, 45, 50])


def test_never_falls() -> None:
    table = CostCurve((1, 2, 3, 4), (10.0, 30.0, 20.0, 40.0)).table(5)
    assert table.tolist() == pytest.approx([10, 10, 30, 30, 40, 50])


def test_a_noisy_last_point_does_not_make_the_extension_fall() -> None:
    table = CostCurve((1, 2, 4), (10.0, 30.0, 20.0)).table(6)
    assert table.tolist() == pytest.approx([10, 10, 30, 30, 30, 30, 30])


def test_one_point_is_flat() -> None:
    assert CostCurve((4,), (7.0,)).table(6).tolist() == [7.0] * 7


def test_captured_sizes_are_steps_and_nothing_is_blended_across_their_end() -> None:
    table = CostCurve((2, 4, 8, 12), (10.0, 20.0, 50.0, 90.0), step_up_to=4).table(13)
    assert table.tolist() == pytest.approx([10, 10, 10, 20, 20, 50, 50, 50, 50, 60, 70, 80, 90, 100])


def test_all_sizes_captured() -> None:
    table = CostCurve((2, 4), (10.0, 20.0), step_up_to=4).table(6)
    assert table.tolist() == pytest.approx([10, 10, 10, 20, 20, 25, 30])


def test_table_shorter_than_the_curve() -> None:
    assert CostCurve((2, 4), (10.0, 20.0)).table(3).tolist() == pytest.approx([10, 10, 10, 15])


def test_samples_give_medians_in_order() -> None:
    curve = CostCurve.from_samples([(4, 9.0), (1, 2.0), (4, 5.0), (4, 100.0), (1, 4.0)], step_up_to=1)
    assert curve == CostCurve((1, 4), (3.0, 9.0), step_up_to=1)


@pytest.mark.parametrize(
    ("sizes", "costs"),
    [
        ((), ()),
        ((1, 2), (1.0,)),
        ((0, 1), (1.0, 2.0)),
        ((2, 1), (1.0, 2.0)),
        ((1, 1), (1.0, 2.0)),
        ((1, 2), (1.0, 0.0)),
        ((1, 2), (1.0, -1.0)),
        ((1, 2), (1.0, float("nan"))),
        ((1, 2), (1.0, float("inf"))),
    ],
)
def test_refuses_bad_curves(sizes: tuple[int, ...], costs: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="cost curve"):
        CostCurve(sizes, costs)


@pytest.mark.parametrize("samples", [[], [(1, 1.0), (1, float("nan")), (1, 1.0)], [(1, 1.0), (1, 0.0), (1, 1.0)]])
def test_refuses_bad_samples_even_where_a_median_would_hide_them(samples: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="cost"):
        CostCurve.from_samples(samples)


@pytest.mark.parametrize("draft", [None, CostCurve((1, 8), (3.0, 5.0))])
def test_tables_go_through_json(draft: CostCurve | None) -> None:
    table = CostTable(CostCurve((1, 16), (50.0, 60.0), step_up_to=16), draft)
    assert CostTable.from_dict(json.loads(json.dumps(table.to_dict()))) == table


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {"verify": None},
        {"verify": {"sizes": [1]}},
        {"verify": {"sizes": [1], "costs": [1.0]}, "other": 1},
        {"verify": {"sizes": [1], "costs": [1.0], "unit": "s"}},
        {"verify": {"sizes": ["x"], "costs": [1.0]}},
        {"verify": {"sizes": 1, "costs": 1.0}},
        {"verify": {"sizes": [1], "costs": [None]}},
        {"verify": {"sizes": [1], "costs": [-1.0]}},
    ],
)
def test_refuses_what_is_no_table(values: object) -> None:
    with pytest.raises(ConfigError, match="cost"):
        CostTable.from_dict(values)  # type: ignore[arg-type]


def test_materialized_tables_reach_the_largest_batch_and_free_drafting_costs_nothing() -> None:
    verify = CostCurve((1, 2), (1.0, 2.0))
    costs = CostTable(verify, CostCurve((1, 2), (3.0, 4.0))).materialize(3, 4)
    assert costs.draft[-1].tolist() == pytest.approx([3, 3, 4, 5])
    assert costs.verify.tolist() == pytest.approx([1, 1, 2, 3, 4])
    assert CostTable(verify).materialize(3, 4).draft.tolist() == [[0.0] * 4] * 2


def test_drafting_is_interpolated_between_the_first_draft_and_the_whole_block() -> None:
    verify, block, first = CostCurve((1,), (9.0,)), CostCurve((1, 2), (8.0, 11.0)), CostCurve((1, 2), (2.0, 3.0))
    rows = CostTable(verify, block, first).materialize(2, 4, num_speculative_tokens=4).draft
    torch.testing.assert_close(rows[:, 1], torch.tensor([0.0, 2, 4, 6, 8], dtype=torch.float64))
    torch.testing.assert_close(rows[:, 2], torch.tensor([0.0, 3, 17 / 3, 25 / 3, 11], dtype=torch.float64))
    unknown = CostTable(verify, block).materialize(2, 4, num_speculative_tokens=4).draft
    assert unknown[:, 1].tolist() == [0.0, 8, 8, 8, 8]
    single = CostTable(verify, block, first).materialize(2, 4, num_speculative_tokens=1).draft
    assert single[:, 1].tolist() == [0.0, 8]
    noisy = CostTable(verify, block, CostCurve((1, 2), (2.0, 12.0))).materialize(2, 4, num_speculative_tokens=4).draft
    assert (noisy.diff(dim=0) >= 0).all(), "a deeper block never costs less"


def test_passes_are_equal_where_nothing_better_is_known() -> None:
    verify, block = CostCurve((1,), (9.0,)), CostCurve((1, 2), (8.0, 11.0))
    equal = CostTable(verify, block).with_equal_passes(4)
    assert equal.materialize(2, 4, num_speculative_tokens=4).draft[:, 1].tolist() == pytest.approx([0.0, 2, 4, 6, 8])
    known = CostTable(verify, block, CostCurve((1,), (3.0,)))
    assert known.with_equal_passes(4) is known
    assert CostTable(verify).with_equal_passes(4) == CostTable(verify)


def test_tables_from_before_there_were_depths_are_read_and_written_alike() -> None:
    old = {"draft": CostCurve((1,), (3.0,)).to_dict(), "verify": CostCurve((1,), (9.0,)).to_dict()}
    assert CostTable.from_dict(old).to_dict() == old
    new = old | {"draft_first": CostCurve((1,), (1.0,)).to_dict()}
    assert CostTable.from_dict(json.loads(json.dumps(new))).to_dict() == new
    with pytest.raises(ConfigError, match="draft_first without draft"):
        CostTable.from_dict(new | {"draft": None})
