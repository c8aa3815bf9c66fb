from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.lab.bench.support import settings

from adaverify.errors import ConfigError
from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.plan import blocks
from adaverify.lab.bench.settings import Asking
from adaverify.lab.bench.store import Store

ARMS = (Arm("a", url="http://a"), Arm("b", url="http://b"))
PROVENANCE = {"command": "adaverify bench", "commit": "c0ffee", "versions": {"torch": "2"}, "machine": {"cores": 2}}
GOOD, BAD = {"failed": 0}, {"failed": 1}


@pytest.fixture
def chosen(tmp_path):
    return settings(tmp_path, ARMS)


def measure(store: Store, group, *results: dict) -> None:
    for position, (cell, result) in enumerate(zip(group, results, strict=False)):
        store.add(cell, position, result)


def test_complete_groups_are_not_measured_again(tmp_path, chosen):
    groups = blocks(chosen)
    store = Store(tmp_path / "out", chosen, PROVENANCE)
    assert store.missing(groups) == groups
    measure(store, groups[0], GOOD, GOOD)
    again = Store(tmp_path / "out", chosen, PROVENANCE)
    assert again.missing(groups) == groups[1:]
    assert [(cell["arm"], cell["pass"], cell["load"], cell["session"]) for cell in again.cells] == [
        ("a", 0, "1", 0),
        ("b", 0, "1", 0),
    ]


def test_half_a_group_and_one_with_failures_are_measured_anew(tmp_path, chosen):
    groups = blocks(chosen)
    store = Store(tmp_path / "out", chosen, PROVENANCE)
    measure(store, groups[0], GOOD)
    measure(store, groups[1], GOOD, BAD)
    again = Store(tmp_path / "out", chosen, PROVENANCE)
    assert again.missing(groups) == groups
    again.drop(groups[0])
    measure(again, groups[0], GOOD, GOOD)
    assert again.missing(groups) == groups[1:]
    assert [cell["session"] for cell in again.cells] == [0, 0, 1, 1]
    assert len(again.document["sessions"]) == 2


def test_a_failed_group_keeps_its_failures_until_it_is_measured_anew(tmp_path, chosen):
    store = Store(tmp_path / "out", chosen, PROVENANCE)
    measure(store, blocks(chosen)[0], BAD, GOOD)
    assert [cell["failed"] for cell in Store(tmp_path / "out", chosen, PROVENANCE).cells] == [1, 0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"asking": Asking(output_len=5, ignore_eos=True)}, "output_len"),
        ({"arms": ARMS[:1]}, "arms"),
        ({"seed": 1}, "seed"),
        ({"target": "m"}, "target"),
        ({"num_prompts": 9, "alone": True}, "num_prompts, servers"),
    ],
)
def test_another_command_is_refused(tmp_path, chosen, changes, told):
    Store(tmp_path / "out", chosen, PROVENANCE).write()
    with pytest.raises(ConfigError) as error:
        Store(tmp_path / "out", replace(chosen, **changes), PROVENANCE)
    assert f"another comparison: {told} changed" in str(error.value)
    assert "--output" in str(error.value)


def test_other_prompts_under_the_same_name_are_refused(tmp_path, chosen):
    Store(tmp_path / "out", chosen, PROVENANCE).write()
    with (tmp_path / "maths.jsonl").open("a") as file:
        file.write('{"prompt": "one more"}\n')
    from adaverify.lab.bench.workload import read_workloads

    other = replace(chosen, workloads=read_workloads([str(tmp_path / "maths.jsonl")], apart=False))
    with pytest.raises(ConfigError, match="workloads changed"):
        Store(tmp_path / "out", other, PROVENANCE)


def test_another_folder_of_a_model_is_noticed_and_not_told(tmp_path, chosen):
    Store(tmp_path / "out", replace(chosen, target="/a/model"), PROVENANCE).write()
    assert "/a/" not in (tmp_path / "out" / "bench.json").read_text()
    with pytest.raises(ConfigError, match="the folders of models changed"):
        Store(tmp_path / "out", replace(chosen, target="/b/model"), PROVENANCE)


def test_passes_may_grow_and_the_baseline_change(tmp_path, chosen):
    store = Store(tmp_path / "out", chosen, PROVENANCE)
    for group in blocks(chosen):
        measure(store, group, GOOD, GOOD)
    more = replace(chosen, passes=3, baseline="b")
    groups = blocks(more)
    assert Store(tmp_path / "out", more, PROVENANCE).missing(groups) == groups[4:]


@pytest.mark.parametrize("key", ["commit", "versions", "machine"])
def test_another_commit_or_machine_is_not_mixed_in(tmp_path, chosen, key):
    store = Store(tmp_path / "out", chosen, PROVENANCE)
    measure(store, blocks(chosen)[0], GOOD)
    with pytest.raises(ConfigError, match=f"another {key}"):
        Store(tmp_path / "out", chosen, PROVENANCE | {key: "other"})
    Store(tmp_path / "out", chosen, PROVENANCE | {"command": "adaverify bench --passes 5"})


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 0}'])
def test_a_file_of_another_kind_is_refused(tmp_path, chosen, text):
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(ConfigError, match="no result of this version"):
        Store(tmp_path, chosen, PROVENANCE)


def test_the_file_is_whole_json_with_its_provenance(tmp_path, chosen):
    store = Store(tmp_path / "out", chosen, PROVENANCE)
    assert store.keep("kv_cache_memory_bytes", 5) == 5
    measure(store, blocks(chosen)[0], GOOD)
    document = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert document["sessions"] == [PROVENANCE]
    assert document["settings"]["loads"][1] == {"max_concurrency": 3, "request_rate": None}
    assert Store(tmp_path / "out", chosen, PROVENANCE).keep("kv_cache_memory_bytes", 6) == 5
