from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import adaverify
from adaverify.cli import app, main
from adaverify.config import EngineConfig, SpeculativeConfig
from adaverify.engine.stats import EngineStats
from adaverify.errors import ConfigError
from adaverify.outputs import CompletionOutput, RequestOutput
from adaverify.policy.cost import CostCurve, CostTable
from adaverify.sampling.params import SamplingParams

DRAFTER = '{"method": "draft_model", "model": "small/drafter", "num_speculative_tokens": 4}'


@dataclass
class Audited:
    rule: str
    expected: str
    max_tv: float
    verdict: str


@dataclass
class FakeLLM:
    """Says 'ok' to every prompt."""

    made: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[Any, SamplingParams]] = field(default_factory=list)
    error: str | None = None
    counters: EngineStats = field(default_factory=EngineStats)
    engine: str = "the engine"

    def __call__(self, **values: Any) -> FakeLLM:
        self.made = values
        return self

    def generate(self, prompts: list[str], params: SamplingParams) -> list[RequestOutput]:
        self.asked.append((prompts, params))
        done = CompletionOutput(0, "ok", [1, 2], finish_reason="error" if self.error else "stop", error=self.error)
        return [RequestOutput(str(i), prompt, [0], [done]) for i, prompt in enumerate(prompts)]

    def chat(self, messages: list[Any], params: SamplingParams) -> list[RequestOutput]:
        self.asked.append((messages, params))
        return self.generate([str(each) for each in messages], params)

    def stats(self) -> EngineStats:
        return self.counters


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(adaverify, "LLM", fake, raising=False)
    return fake


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Put a stand-in where a command imports a heavy module from."""
    stand_in = ModuleType(name)
    vars(stand_in).update(members)
    monkeypatch.setitem(sys.modules, name, stand_in)


def run(*args: str) -> Any:
    return CliRunner().invoke(app, args)


def run_main(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    """Exit code of the entry point."""
    monkeypatch.setattr(sys, "argv", ["adaverify", *args])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code or 0


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, f"adaverify {version('adaverify')}")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['adaverify', 'serve', '--help']\nfrom adaverify.cli import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print('heavy:', sorted({'torch', 'transformers', 'fastapi', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("heavy: []")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--speculative-config", "{not json"], "not valid JSON"),
        (["--speculative-config", '{"method": "draft_model", "model": "d", "K": 3}'], "num_speculative_tokens"),
        (["--speculative-config", DRAFTER.replace("}", ', "typo": 1}')], "typo"),
        (["--speculative-config", DRAFTER.replace("4", "0")], "num_speculative_tokens"),
        (["--speculative-config", DRAFTER.replace("draft_model", "magic")], "magic"),
        (["--dtype", "int3"], "dtype"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "8"], "max_num_batched_tokens"),
    ],
)
def test_a_bad_flag_is_one_line_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], told: str
) -> None:
    # No target: a slip must not even cost the download of the default model.
    module(monkeypatch, "adaverify.engine.default_model")
    assert run_main(monkeypatch, "serve", *args) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert told in captured.err
    assert captured.err.count("\n") == 1


class StubEngine(SimpleNamespace):
    """What ``serve`` needs to know of an engine."""

    max_model_len = 64

    @classmethod
    def from_config(cls, config: EngineConfig) -> StubEngine:
        if config.model == "no/such-model":
            raise ConfigError("no/such-model is neither a folder\nnor a model of the hub")
        return cls(config=config)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of trained drafters, still without a default one."""
    monkeypatch.setenv("ADAVERIFY_MODELS", str(tmp_path))
    return tmp_path


def add_default_drafter(models: Path) -> dict[str, Any]:
    """Put a default drafter into ``models``; returns the configuration that it stands for."""
    choice = {"model": "tiny-eagle3", "method": "eagle3", "num_speculative_tokens": 3}
    (models / "default.json").write_text(json.dumps(choice))
    (models / "tiny-eagle3").mkdir()
    for name in ("config.json", "model.safetensors"):
        (models / "tiny-eagle3" / name).write_text("x")
    return choice | {"model": str(models / "tiny-eagle3"), "enable_adaptive_verification": True}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, models: Path) -> dict[str, Any]:
    """What ``serve`` would have run."""
    seen: dict[str, Any] = {}
    monkeypatch.setenv("COLUMNS", "200")
    module(monkeypatch, "adaverify.engine.async_engine", AsyncEngine=StubEngine)
    module(monkeypatch, "adaverify.engine.default_model", default_model_path=lambda: Path("cache/tiny-default"))

    def run_server(app: Any, listener: Any, grace: float, on_ready: Any) -> None:
        on_ready()
        seen.update(state=app.state.server, address=listener.getsockname(), grace=grace)
        listener.close()

    monkeypatch.setattr("adaverify.server.runner.run_server", run_server)
    return seen


def test_serve_maps_every_flag(served: dict[str, Any]) -> None:
    flags = {
        "tokenizer": "t",
        "dtype": "float32",
        "device": "cpu",
        "seed": 3,
        "max_model_len": 99,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 77,
        "max_waiting": 8,
        "block_size": 4,
        "kv_cache_memory_bytes": 1000,
        "num_kv_blocks": 20,
    }
    args = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    result = run("serve", "org/target", "--port", "0", "--no-enable-prefix-caching", "--speculative-config", DRAFTER,
                 "--shutdown-grace", "7", *args)  # fmt: skip
    assert result.exit_code == 0, result.output
    config = served["state"].engine.config
    assert config == EngineConfig.build(
        model="org/target", enable_prefix_caching=False, speculative_config=DRAFTER, **flags
    )
    assert set(flags) | {"model", "enable_prefix_caching", "speculative_config"} == set(EngineConfig.model_fields)
    assert served["grace"] == 7
    assert served["state"].model_names == ["org/target"]


def test_serve_shows_what_it_serves_and_how_to_ask(served: dict[str, Any]) -> None:
    result = run(
        "serve", "org/target", "--port", "0", "--num-gpu-blocks-override", "20", "--speculative-config", DRAFTER
    )
    port = served["address"][1]
    for told in ("org/target", "20 of 16 tokens", "draft_model drafter, K=4", f"http://127.0.0.1:{port}/v1", "curl"):
        assert told in result.stderr, told
    assert result.stdout == ""


def test_the_curl_example_is_one_line_however_narrow_the_terminal(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = run("serve", "org/target", "--port", "0")
    (curl,) = (line for line in result.stderr.splitlines() if "curl" in line)
    assert "/v1/chat/completions" in curl
    assert curl.endswith("}]}'")


def test_serve_without_target_takes_the_default_model(served: dict[str, Any]) -> None:
    result = run("serve", "--port", "0")
    assert result.exit_code == 0
    assert served["state"].engine.config == EngineConfig(model=str(Path("cache/tiny-default")))
    assert served["state"].model_names == ["tiny-default"]
    (why,) = (line for line in result.stderr.splitlines() if line.startswith("No drafts: "))
    assert "default.json" in why


def test_serve_without_target_takes_the_default_drafter_and_names_it(served: dict[str, Any], models: Path) -> None:
    drafter = add_default_drafter(models)
    result = run("serve", "--port", "0", "--seed", "3")
    assert served["state"].engine.config == EngineConfig.build(
        model=str(Path("cache/tiny-default")), seed=3, speculative_config=drafter
    )
    assert "eagle3 tiny-eagle3, K=3" in result.stderr
    assert "No drafts" not in result.stderr


@pytest.mark.parametrize("args", [["org/target"], ["--no-speculation"], ["org/target", "--no-speculation"]])
def test_no_default_drafter_for_another_target_or_unwanted(
    served: dict[str, Any], models: Path, args: list[str]
) -> None:
    add_default_drafter(models)
    result = run("serve", "--port", "0", *args)
    assert result.exit_code == 0, result.output
    assert served["state"].engine.config.speculative_config is None
    assert "No drafts" not in result.stderr


def test_a_configured_drafter_comes_before_the_default_one(served: dict[str, Any], models: Path) -> None:
    add_default_drafter(models)
    run("serve", "--port", "0", "--speculative-config", DRAFTER)
    assert served["state"].engine.config.speculative_config == SpeculativeConfig.parse(DRAFTER)


def test_no_speculation_with_a_drafter_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "generate", "Hi", "--no-speculation", "--speculative-config", DRAFTER) == 1
    assert capsys.readouterr().err.startswith("error: --no-speculation and --speculative-config")


def test_generate_takes_the_default_drafter_and_profile_does_not(
    llm: FakeLLM, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, "adaverify.engine.default_model", default_model_path=lambda: Path("cache/tiny-default"))
    module(monkeypatch, "adaverify.engine.profiling", profile_costs=lambda engine: CostTable(CostCurve((1,), (1.0,))))
    drafter = add_default_drafter(models)
    assert run("generate", "Hi").exit_code == 0
    assert llm.made == {"model": str(Path("cache/tiny-default")), "speculative_config": drafter}
    assert run("generate", "Hi", "--no-speculation").exit_code == 0
    assert llm.made == {"model": str(Path("cache/tiny-default"))}
    assert run("profile").exit_code == 0
    assert llm.made == {"model": str(Path("cache/tiny-default"))}


def test_served_names_and_key(served: dict[str, Any]) -> None:
    run("serve", "m", "--port", "0", "--served-model-name", "a", "--served-model-name", "b", "--api-key", "k")
    assert served["state"].model_names == ["a", "b"]
    served["state"].check_key("Bearer k")
    with pytest.raises(Exception, match="API key"):
        served["state"].check_key(None)


def test_an_unknown_model_is_one_line(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "serve", "no/such-model", "--port", "0") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: no/such-model is neither a folder nor a model of the hub"


def test_serve_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "adaverify.server.runner", raising=False)
    monkeypatch.setattr("adaverify.server.runner", None, raising=False)
    monkeypatch.delattr("adaverify.server.runner")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run_main(monkeypatch, "serve", "m") == 1
    assert "pip install 'adaverify[serve]'" in capsys.readouterr().err


def test_generate_prints_the_text_and_the_speed(llm: FakeLLM) -> None:
    llm.counters = EngineStats(num_draft_rounds=10, drafted=[10, 10], admitted=[9, 3], accepted=[6, 1])
    result = run("generate", "Hi", "--model", "m", "--speculative-config", DRAFTER, "--max-tokens", "5",
                 "--temperature", "0.5", "--stop", "x", "-n", "1", "--max-num-seqs", "3")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout == "ok\n"
    assert "2 tokens in" in result.stderr
    assert "2.00 drafted, 1.20 admitted, 0.70 accepted" in " ".join(result.stderr.split())
    (prompts, params), *_ = llm.asked
    assert prompts == ["Hi"]
    assert (params.max_tokens, params.temperature, params.stop, params.n) == (5, 0.5, ["x"], 1)
    assert (llm.made["model"], llm.made["max_num_seqs"], llm.made["speculative_config"]) == ("m", 3, DRAFTER)


def test_generate_json(llm: FakeLLM) -> None:
    report = json.loads(run("generate", "Hi", "Ho", "--model", "m", "--json").stdout)
    assert [output["prompt"] for output in report["outputs"]] == ["Hi", "Ho"]
    assert report["outputs"][0]["outputs"][0]["text"] == "ok"
    assert report["stats"]["tokens"] == 4
    assert "accepted_per_round" not in report["stats"]


def test_generate_as_chat(llm: FakeLLM) -> None:
    assert run("generate", "Hi", "--model", "m", "--chat").exit_code == 0
    assert llm.asked[0][0] == [[{"role": "user", "content": "Hi"}]]


def test_generate_tells_failures(llm: FakeLLM) -> None:
    llm.error = "not finite"
    result = run("generate", "Hi", "--model", "m")
    assert result.exit_code == 1
    assert "error: not finite" in result.stderr


def test_generate_refuses_a_negative_temperature(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "generate", "Hi", "--model", "m", "--temperature", "-1") == 1
    assert capsys.readouterr().err.startswith("error: temperature must be 0 or more")
    assert llm.made == {}


def test_profile(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = CostTable(verify=CostCurve((1, 16), (50.0, 64.0)), draft=CostCurve((1,), (7.5,)))
    profiled = []
    module(
        monkeypatch,
        "adaverify.engine.profiling",
        profile_costs=lambda engine: profiled.append(engine) or table,
    )
    result = run("profile", "m", "--dtype", "float32")
    assert json.loads(result.stdout) == table.to_dict()
    assert " 4.000 " in result.stderr  # 64 ms for 16 tokens
    assert "7.50" in result.stderr
    assert profiled == ["the engine"]
    assert (llm.made["model"], llm.made["dtype"]) == ("m", "float32")

    result = run("profile", "m", "-o", str(tmp_path / "costs.json"))
    assert result.stdout == ""
    assert json.loads((tmp_path / "costs.json").read_text()) == table.to_dict()


def test_profile_checks_the_folder_before_it_measures(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "profile", "m", "-o", "no-such-folder/costs.json") == 1
    assert "no-such-folder" in capsys.readouterr().err
    assert llm.made == {}


@pytest.mark.parametrize(("verdict", "code"), [("pass", 0), ("fail", 1), ("inconclusive", 1)])
def test_audit(monkeypatch: pytest.MonkeyPatch, verdict: str, code: int) -> None:
    rows = [Audited("paper", "exact", 1e-17, "pass"), Audited("q_sampled", "biased", 0.1, verdict)]
    module(monkeypatch, "adaverify.policy.exactness", audit_exactness=lambda: rows)
    result = run("audit", "exactness")
    assert result.exit_code == code
    assert all(told in result.stdout for told in ("paper", "1e-17", "biased", verdict))
    result = run("audit", "exactness", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)[1] == {
        "rule": "q_sampled",
        "expected": "biased",
        "max_tv": 0.1,
        "verdict": verdict,
    }


def test_module_entry_point() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "adaverify", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("adaverify ")
