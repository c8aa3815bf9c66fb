from __future__ import annotations

import pytest
from tests.lab.bench.support import prompt_file, settings

from adaverify.errors import ConfigError
from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.plan import blocks, in_turn
from adaverify.lab.bench.workload import read_workloads

ARMS = tuple(Arm(name, url=f"http://{name}") for name in "abcde")


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_two_passes_cancel_what_grows_evenly(count):
    items = list(range(count))
    for first in range(0, 8, 2):
        for position in range(3):
            orders = [in_turn(items, number, position) for number in (first, first + 1)]
            assert all(sorted(order) == items for order in orders)
            assert {sum(order.index(item) for order in orders) for item in items} == {count - 1}


def test_the_middle_and_the_ends_change_places():
    firsts = {tuple(in_turn("abcd", number, 0)) for number in range(4)}
    assert len(firsts) == 4


def test_arms_are_compared_within_one_load_of_one_pass(tmp_path):
    files = [str(prompt_file(tmp_path, name, 9)) for name in ("x", "y")]
    plan = blocks(settings(tmp_path, ARMS, workloads=read_workloads(files, apart=True)))
    assert len(plan) == 2 * 2 * 2
    for group in plan:
        assert len({cell.key[:3] for cell in group}) == 1
        assert {cell.arm.name for cell in group} == set("abcde")
    assert [cell.arm.name for cell in plan[0]] == ["a", "b", "c", "d", "e"]
    assert [cell.arm.name for cell in plan[1]] == ["e", "d", "c", "b", "a"]
    assert [cell.pass_number for cell in plan[4]] == [1] * 5
    assert [cell.arm.name for cell in plan[4]] == ["e", "d", "c", "b", "a"]


def test_alone_an_arm_does_all_its_work_of_a_pass_in_one_go(tmp_path):
    plan = blocks(settings(tmp_path, ARMS, alone=True))
    assert [group[0].arm.name for group in plan] == [*"abcde", *"edcba"]
    assert [cell.load.label for cell in plan[0]] == ["1", "3"]


def test_no_measurement_of_an_arm_shares_a_question_with_another(tmp_path):
    chosen = settings(tmp_path, ARMS, passes=3)
    asked = list(range(chosen.num_warmups))
    for number in range(3):
        for load in chosen.loads:
            first = chosen.first_question(number, load)
            asked += range(first, first + chosen.num_requests(load))
    assert sorted(asked) == list(range(2 + 3 * (4 + 6)))


@pytest.mark.parametrize(
    ("changes", "told"), [({"loads": (Load(2), Load(2))}, "twice"), ({"baseline": "z"}, "one of a, b, c, d, e")]
)
def test_settings_that_cannot_be_are_refused(tmp_path, changes, told):
    with pytest.raises(ConfigError, match=told):
        settings(tmp_path, ARMS, **changes)
