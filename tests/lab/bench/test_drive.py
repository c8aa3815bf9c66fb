from __future__ import annotations

from itertools import islice

import pytest
from tests.lab.bench.fake_server import FakeServer, live

from adaverify.lab.bench.counters import parse, scrape, spent
from adaverify.lab.bench.drive import Endpoint, Traffic, drive
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.settings import Asking
from adaverify.lab.bench.workload import Question

QUESTIONS = [Question("maths" if i % 2 else "chat", f"question {i}", i) for i in range(12)]
ASKING = Asking(output_len=6, ignore_eos=True, timeout=20)


def ask(server: FakeServer, load: Load) -> Traffic:
    with live(server) as url:
        return drive(Endpoint(url, "fake", {"Authorization": "Bearer key"}), QUESTIONS, load, ASKING, seed=5)


def test_users_wait_for_their_answers():
    server = FakeServer()
    traffic = ask(server, Load(3))
    assert [answer.error for answer in traffic.answers] == [""] * 12
    assert server.most_running == 3
    assert sorted(one["seed"] for one in server.bodies) == list(range(12))
    assert all(one["messages"][0]["content"] == f"question {one['seed']}" for one in server.bodies)
    assert server.keys == {"Bearer key"}
    assert {len(answer.deliveries) for answer in traffic.answers} == {3}
    assert {(answer.input_tokens, answer.output_tokens) for answer in traffic.answers} == {(5, 6)}
    # the load falls when the first user is done for good: before the end, after all were asked
    ends = sorted(answer.ended for answer in traffic.answers)
    assert ends[-3] <= traffic.loaded_until <= traffic.ended
    assert max(answer.sent for answer in traffic.answers) <= traffic.loaded_until


def test_one_user_is_loaded_to_the_end():
    traffic = ask(FakeServer(), Load(1))
    assert max(answer.ended for answer in traffic.answers) <= traffic.loaded_until


def test_arrivals_come_at_their_times_whether_answers_do_or_not():
    load = Load(request_rate=1000.0)
    server = FakeServer()
    traffic = ask(server, load)
    sent = sorted(answer.sent - traffic.began for answer in traffic.answers)
    assert all(time >= at for time, at in zip(sent, islice(load.arrivals(5), 12), strict=True))
    assert server.most_running > 3
    assert traffic.loaded_until < traffic.ended


def test_arrivals_may_be_capped():
    server = FakeServer()
    traffic = ask(server, Load(2, request_rate=1000.0))
    assert server.most_running == 2
    assert len(traffic.answers) == 12


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (500, "HTTP 500"),
        ("break", "RemoteProtocolError"),
        ("error", "not finite"),
        ("short", "3 tokens of 6"),
    ],
)
def test_a_failed_request_costs_itself_alone(failure, told):
    traffic = ask(FakeServer(fail=lambda body: failure if body["seed"] == 4 else None), Load(3))
    errors = {answer.error for answer in traffic.answers}
    assert len(errors) == 2
    assert told in max(errors)
    assert sum(bool(answer.error) for answer in traffic.answers) == 1


def test_a_server_that_is_not_there_fails_every_request():
    with live(FakeServer()) as url:
        pass
    traffic = drive(Endpoint(url, "fake", {}), QUESTIONS, Load(3), ASKING, seed=5)
    assert all("Connect" in answer.error for answer in traffic.answers)


def test_counters_are_those_of_the_measurement_alone():
    server = FakeServer()
    with live(server) as url:
        endpoint = Endpoint(url, "fake", {})
        drive(endpoint, QUESTIONS[:5], Load(1), ASKING, seed=5)
        before = scrape(endpoint)
        drive(endpoint, QUESTIONS, Load(3), ASKING, seed=5)
        found = spent(before, scrape(endpoint))
    assert found == {
        "rounds": 36,
        "drafted": [36, 36],
        "admitted": [36, 0],
        "accepted": [36, 0],
        "step_seconds": {"target": 36.0},
        "cached_input_tokens": None,
        "preemptions": None,
    }


def test_a_server_without_metrics_has_no_counters():
    with live(FakeServer(has_metrics=False)) as url:
        assert scrape(Endpoint(url, "fake", {})) is None
    assert set(spent(None, None).values()) == {None}


def test_counters_of_several_engines_add_up():
    name = "vllm:spec_decode_num_drafts_total"
    text = f'# TYPE {name.removesuffix("_total")} counter\n{name}{{engine="0"}} 2\n{name}{{engine="1"}} 3\n'
    assert parse(text) == {name: {"": 5.0}}
    with pytest.raises(ValueError):  # noqa: PT011
        parse(f"{name} two\n")
