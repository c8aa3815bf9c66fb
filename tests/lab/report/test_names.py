from __future__ import annotations

import pytest
from tests.lab.report.traces import with_runs

from adaverify.lab.report.names import by_drafter, drafter_name, file_name, folded, plain, shortened


@pytest.mark.parametrize(
    ("name", "shown"), [("a b", "a b"), ("a\x00\nb", "a��b"), ("", "(unnamed)"), (" ", "(unnamed)")]
)
def test_names_without_what_no_page_can_hold(name, shown):
    assert plain(name) == shown


def test_long_names_keep_both_ends():
    assert shortened("abcdefghijklmnop", 10) == "abcdef…nop"
    assert shortened("abc", 10) == "abc"


def test_names_that_a_legend_would_drop_are_kept():
    assert not shortened("_private", 20).startswith("_")


def test_text_is_folded_into_three_lines_at_most():
    lines = folded("word " * 40, 20).splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 20
    assert lines[-1].endswith("…")


def test_file_names_hold_no_path():
    assert file_name("../Qwen2.5/0.5B <x>") == "qwen2.5-0.5b-x"
    assert file_name("中文") == "unnamed"


def test_runs_of_one_drafter_and_target_are_one_part(two_runs):
    assert [len(part.runs) for part in by_drafter(two_runs)] == [2]
    other_target = with_runs(two_runs, {}, {"target": "other"})
    parts = list(by_drafter(other_target))
    assert [drafter_name(part) for part in parts] == ["tiny-draft (eagle3) for tiny", "tiny-draft (eagle3) for other"]
    assert [len(part.steps) for part in parts] == [120, 60]


@pytest.mark.parametrize(
    ("change", "manner"),
    [
        ({"rejection_sample_method": "coupled"}, "eagle3, coupled"),
        ({"draft_sample_method": "greedy"}, "eagle3, greedy drafts"),
        ({"trimmed": True}, "eagle3, trimmed"),
    ],
)
def test_runs_that_sample_or_verify_otherwise_are_parts_of_their_own(two_runs, change, manner):
    parts = list(by_drafter(with_runs(two_runs, {}, change)))
    assert [drafter_name(part) for part in parts] == ["tiny-draft (eagle3) for tiny", f"tiny-draft ({manner}) for tiny"]
