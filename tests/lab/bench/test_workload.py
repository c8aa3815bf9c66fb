from __future__ import annotations

import json
from collections import Counter
from itertools import islice, pairwise

import pytest
from tests.lab.bench.support import prompt_file

from adaverify.errors import ConfigError
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.workload import read_workloads


def test_every_beginning_holds_the_files_in_their_weights(tmp_path):
    files = [f"{prompt_file(tmp_path, 'maths', 5)}:3", str(prompt_file(tmp_path, "chat", 50))]
    (workload,) = read_workloads(files, apart=False)
    names = [question.dataset for question in islice(workload.questions(0), 400)]
    for end in range(4, 401, 4):
        assert names[:end].count("maths") == 3 * end // 4
    assert workload.name == "mixed"


def test_all_prompts_come_before_one_comes_again_each_time_in_another_order(tmp_path):
    (workload,) = read_workloads([str(prompt_file(tmp_path, "maths", 20))], apart=False)
    texts = [question.text for question in islice(workload.questions(0), 40)]
    assert Counter(texts[:20]) == Counter(texts[20:]) == Counter(f"maths {i}" for i in range(20))
    assert texts[:20] != texts[20:]
    assert texts[:20] != sorted(texts[:20])


def test_questions_depend_on_the_seed_alone_and_slices_are_parts_of_one_stream(tmp_path):
    (workload,) = read_workloads([str(prompt_file(tmp_path, "maths", 20))], apart=False)
    whole = list(islice(workload.questions(7), 30))
    assert workload.slice(7, 10, 5) == whole[10:15]
    assert [question.seed for question in whole] == list(range(7, 37))
    assert [one.text for one in whole] != [one.text for one in islice(workload.questions(8), 30)]


def test_files_apart_are_workloads_of_their_own(tmp_path):
    files = [str(prompt_file(tmp_path, name, 3)) for name in ("maths", "chat")]
    assert [workload.name for workload in read_workloads(files, apart=True)] == ["maths", "chat"]


def test_messages_of_a_chat_and_the_first_turn_alone(tmp_path):
    path = tmp_path / "speed.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": c} for c in ("first", "then")]}) + "\n")
    (workload,) = read_workloads([str(path)], apart=False)
    assert workload.slice(0, 0, 1)[0].text == "first"


def test_no_file_and_two_of_one_name_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--dataset"):
        read_workloads([], apart=False)
    file = str(prompt_file(tmp_path, "maths", 3))
    with pytest.raises(ConfigError, match="same name"):
        read_workloads([file, file], apart=True)


def test_arrivals_have_their_rate_and_burstiness():
    def gaps(load: Load) -> list[float]:
        times = list(islice(load.arrivals(3), 20_001))
        assert times[0] == 0
        return [after - before for before, after in pairwise(times)]

    poisson, even = gaps(Load(request_rate=4.0)), gaps(Load(request_rate=4.0, burstiness=100.0))
    assert sum(poisson) / len(poisson) == pytest.approx(0.25, rel=0.03)
    assert sum(even) / len(even) == pytest.approx(0.25, rel=0.03)
    # exponential gaps are as wide as they are long
    assert sum((gap - 0.25) ** 2 for gap in poisson) / len(poisson) == pytest.approx(0.25**2, rel=0.1)
    assert max(even) < 0.4
    assert gaps(Load(request_rate=4.0)) == poisson


def test_a_closed_loop_uses_every_seat_several_times():
    assert Load(16).num_requests(at_least=10, per_seat=3) == 48
    assert Load(2).num_requests(at_least=10, per_seat=3) == 10
    assert Load(16, request_rate=2.0).num_requests(at_least=10, per_seat=3) == 10
    assert [Load(16).label, Load(16, request_rate=2.5).label] == ["16", "2.5/s"]
