from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.lab.bench.fake_server import FakeServer, live
from tests.lab.bench.support import BASE

from adaverify.errors import ConfigError
from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.processor import ProcessorTime
from adaverify.lab.bench.server import Server
from adaverify.lab.bench.servers import Servers, command_of

FAKE = Path(__file__).with_name("fake_server.py")


def command(argument: str = "{port}") -> str:
    return shlex.join([sys.executable, str(FAKE), argument])


def server(folder: Path, name: str = "a", argument: str = "{port}") -> Server:
    arm = Arm(name, command=command(argument))
    return Server(arm, command_of(arm, None, ()), folder / f"{name}.log", 30, {})


def is_stopped(group: int | None) -> bool:
    """Whether a process is stopped; a signal takes its time where the cores are busy."""
    for _ in range(1000):
        if Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.01)
    return False


def answers(server: Server) -> bool:
    assert server.endpoint is not None
    return httpx.get(f"{server.endpoint.url}/v1/models").status_code == 200


def test_a_server_starts_pauses_resumes_and_stops(tmp_path):
    one = server(tmp_path)
    endpoint = one.start()
    group = one.group
    assert endpoint.model == "fake"
    one.pause()
    assert is_stopped(group)
    one.resume()
    assert answers(one)
    one.pause()
    one.stop()
    assert not Path(f"/proc/{group}").exists()
    assert one.endpoint is None


def test_a_server_that_ends_is_told_with_its_last_line(tmp_path):
    one = server(tmp_path, argument="broken")
    with pytest.raises(ConfigError) as error:
        one.start()
    assert "the server of arm a ended with code 1: error: out of memory" in str(error.value)
    assert "a.log" in str(error.value)
    one.stop()


def test_a_url_that_does_not_answer_is_told(tmp_path):
    arm = Arm("up", url="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="did not answer"):
        Server(arm, command_of(arm, None, ()), tmp_path / "up.log", 0.1, {}).start()


def test_a_refused_key_is_told_at_once(tmp_path):
    with live(FakeServer(key="Bearer right")) as url:
        one = Server(Arm("up", url=url), None, tmp_path / "up.log", 30, {"Authorization": "Bearer wrong"})
        with pytest.raises(ConfigError, match="HTTP 401; give its --api-key"):
            one.start()
        assert Server(one.arm, None, tmp_path / "up.log", 30, {"Authorization": "Bearer right"}).start().model == "fake"


def test_our_servers_ask_for_no_key(tmp_path, monkeypatch):
    monkeypatch.setenv("ADAVERIFY_API_KEY", "secret")
    one = server(tmp_path)
    one.start()
    environment = Path(f"/proc/{one.group}/environ").read_bytes()
    one.stop()
    assert b"PATH=" in environment
    assert b"secret" not in environment


def test_all_are_up_and_only_the_one_in_use_runs(tmp_path):
    both = [server(tmp_path, name) for name in "ab"]
    warmed = []
    with Servers(both, alone=False, on_start=lambda one: None, warm_up=warmed.append) as servers:
        groups = [one.group for one in both]
        assert all(map(is_stopped, groups))
        assert warmed == both
        with servers.serving(both[1].arm) as one:
            assert one is both[1]
            assert is_stopped(groups[0])
            assert answers(one)
        assert all(map(is_stopped, groups))
    assert not any(Path(f"/proc/{group}").exists() for group in groups)
    assert len(warmed) == 2


def test_alone_a_server_stays_until_another_is_wanted(tmp_path):
    both = [server(tmp_path, name) for name in "ab"]
    warmed = []
    with Servers(both, alone=True, on_start=lambda one: None, warm_up=warmed.append) as servers:
        for arm, running in ((0, [True, False]), (0, [True, False]), (1, [False, True])):
            with servers.serving(both[arm].arm):
                assert [one.group is not None for one in both] == running
    assert warmed == both


def test_a_server_that_cannot_start_takes_the_others_down(tmp_path):
    good, bad = server(tmp_path, "a"), server(tmp_path, "b", "broken")
    with (
        pytest.raises(ConfigError, match="arm b"),
        Servers([good, bad], alone=False, on_start=lambda one: None, warm_up=lambda one: None),
    ):
        pass
    assert good.group is None


def kill(server: Server) -> None:
    server._process.kill()
    server._process.wait()


def test_a_server_that_dies_under_load_is_told(tmp_path):
    one = server(tmp_path)
    with (
        pytest.raises(ConfigError, match="ended with code -9"),
        Servers([one], alone=False, on_start=lambda one: None, warm_up=lambda one: None) as servers,
        servers.serving(one.arm),
    ):
        kill(one)


def test_commands_of_our_servers():
    words = command_of(Arm("av", BASE), "target", ("--dtype", "float32"))
    assert words[1:] == [
        *("-m", "adaverify", "serve", "target", "--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32"),
        *("--speculative-config", BASE.model_dump_json(exclude_defaults=True)),
    ]
    assert command_of(Arm("k0"), "target", ())[-1] == "--no-speculation"


def test_processor_time_is_told_apart(tmp_path):
    one = server(tmp_path)
    one.start()
    before = ProcessorTime.now(one.group)
    sum(i * i for i in range(1_000_000))
    after = ProcessorTime.now(one.group)
    one.stop()
    shares = after.shares_since(before, 1.0)
    assert shares["client_cpu_share"] > 0
    assert 0 <= shares["server_cpu_share"] < 0.5
    assert shares["other_cpu_share"] >= 0
    assert after.server >= before.server > 0
    assert ProcessorTime.now(None).shares_since(before, 1.0)["other_cpu_share"] is None
