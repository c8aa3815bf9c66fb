"""A smoke run of ``adaverify train`` for every method, and what it leaves."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from adaverify.cli import app
from adaverify.drafters.models import read_draft_config
from adaverify.errors import ConfigError
from adaverify.sampling.params import SamplingParams
from adaverify.training.checkpoint import RECORD, WEIGHTS
from adaverify.training.recipes import TargetInfo
from adaverify.training.run import check_head, load_target
from support import plain_llm, token_ids

pytest.importorskip("speculators", reason="training needs the speculators package")

METHODS = ("eagle3", "mtp", "dflash", "dflash2", "dspark")
SIZE = ["--draft-vocab-size", "40", "--block-size", "4", "--rank", "4"]


def train(method: str, target: Path, prompts: Path, cache: Path, out: Path, *more: str):
    arguments = ["train", method, "--target", str(target), "--prompts", str(prompts), "--self-prompts", "1"]
    arguments += ["--answer-tokens", "1500", "--max-tokens", "24", "--cache", str(cache), "--out", str(out)]
    arguments += [
        "--dtype",
        "float32",
        "--epochs",
        "6",
        "--learning-rate",
        "5e-3",
        "--measure-prompts",
        "0",
        *SIZE,
        *more,
    ]
    with mock.patch.object(sys, "argv", ["adaverify", *arguments]):  # the card quotes the command as typed
        return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=METHODS)
def trained(request, target, prompts, cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / request.param
    result = train(request.param, target, prompts, cache, out)
    assert result.exit_code == 0, result.output + str(result.exception)
    return request.param, out


def test_it_learns_and_says_how_much(trained, target):
    method, out = trained
    record = json.loads((out / RECORD).read_text())
    curve = record["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert len(curve[-1]["acceptance"]) == (4 if method == "dspark" else 3)
    assert record["method"] == method
    assert record["target"] == target.name
    assert record["data"]["sources"].keys() == {"questions", "self"}
    assert not (out / "training.pt").exists()
    text = "".join(path.read_text() for path in out.iterdir() if path.suffix in (".json", ".md"))
    assert str(target.parent) not in text


def test_the_card_tells_what_a_user_needs(trained):
    method, out = trained
    card = (out / "README.md").read_text()
    for needed in (method, "adaverify train", "--speculative-config", "questions", "torch", "tokens"):
        assert needed in card
    assert not re.search(r"/tmp|/root|/home", card)


def test_the_checkpoint_drafts_in_the_engine_without_changing_the_text(trained, target):
    method, out = trained
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    prompts = [[1, 2, 5 + i, 6, 4, 1, 3] for i in range(6)]
    plain = plain_llm(target).generate(prompts, params)
    speculative = {"method": method, "model": str(out), "num_speculative_tokens": 3}
    llm = plain_llm(target, speculative_config=speculative)
    assert token_ids(llm.generate(prompts, params)) == token_ids(plain)
    assert sum(llm.stats().accepted) > 0


def test_the_checkpoint_holds_nothing_of_the_target(trained, target):
    _, out = trained
    from safetensors import safe_open

    with safe_open(out / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        assert not [name for name in names if name.startswith(("embed_tokens", "lm_head", "verifier"))]
        assert all(file.get_tensor(name).dtype in (torch.bfloat16, torch.int64, torch.bool) for name in names)


def test_speculators_reads_the_checkpoint(trained):
    from speculators import SpeculatorModelConfig

    method, out = trained
    assert SpeculatorModelConfig.from_pretrained(str(out)).speculators_model_type == method


def test_a_broken_run_goes_on_from_its_state(target, prompts, cache, tmp_path, monkeypatch):
    from adaverify.training import trainer

    class BrokenError(Exception):
        pass

    original, broken_at = trainer.Trainer._step, 10
    steps = []

    def step(self, batch, share):
        steps.append(share)
        if len(steps) == broken_at:
            raise BrokenError
        original(self, batch, share)

    monkeypatch.setattr(trainer.Trainer, "_step", step)
    out = tmp_path / "broken"
    assert isinstance(train("eagle3", target, prompts, cache, out, "--epochs", "12").exception, BrokenError)
    assert (out / "training.pt").exists()
    other = train("eagle3", target, prompts, cache, out, "--epochs", "12", "--draft-vocab-size", "30")
    assert re.search("state of another run.*--out", str(other.exception))
    first, steps[:] = list(steps), [0.0] * broken_at
    assert train("eagle3", target, prompts, cache, out, "--epochs", "12").exit_code == 0
    assert steps[broken_at] > 0.1
    assert steps[broken_at] <= first[-1]
    steps.clear()
    assert train("eagle3", target, prompts, cache, out, "--epochs", "12").exit_code == 0
    assert steps == []


def test_a_drafter_may_start_from_another(target, prompts, cache, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert train("dspark", target, prompts, cache, first).exit_code == 0
    still = ("--epochs", "0.01", "--learning-rate", "1e-9", "--matrix-learning-rate", "1e-9")
    # more answers: another draft vocabulary would be chosen from them
    more = ("--init-from", str(first), "--answer-tokens", "2600", *still)
    assert train("dspark", target, prompts, cache, second, *more).exit_code == 0
    record = json.loads((second / RECORD).read_text())
    assert record["init_from"] == "first"
    (stage,) = record["earlier_stages"]
    assert stage["seconds"] == json.loads((first / RECORD).read_text())["seconds"]
    card = (second / "README.md").read_text()
    assert stage["command"] in card
    assert "minutes in all" in card
    before, after = load_file(first / WEIGHTS), load_file(second / WEIGHTS)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0.01, atol=1e-4, msg=name)
    result = train("eagle3", target, prompts, cache, tmp_path / "third", "--init-from", str(tmp_path / "nowhere"))
    assert "nowhere" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "medusa", "--out", "x"], "medusa.*eagle3"),
        (["train", "mtp", "--out", "x", "--prompts", "nowhere.jsonl"], "nowhere.jsonl.*no such file"),
    ],
)
def test_refusals_name_the_remedy(target, arguments, message, tmp_path):
    result = CliRunner().invoke(app, [*arguments, "--target", str(target), "--cache", str(tmp_path)])
    assert re.search(message, str(result.exception))


def test_nothing_to_train_on_is_said_before_anything_is_loaded(target, tmp_path):
    result = CliRunner().invoke(app, ["train", "mtp", "--out", "x", "--target", str(target), "--cache", str(tmp_path)])
    assert re.search("nothing to train on.*--prompts", str(result.exception))


def test_the_configuration_names_taps_and_target(trained, target):
    method, out = trained
    config = json.loads((out / "config.json").read_text())
    assert config["speculators_config"]["verifier"]["name_or_path"] == target.name
    loaded = load_target(str(target), "float32", "cpu")
    draft = read_draft_config(out, loaded.model.config)
    assert draft.tap_layer_ids == ((2,) if method == "mtp" else (0, 1, 2))
    temperatures = draft.confidence_temperatures
    assert (temperatures is not None and len(temperatures) == 4 and min(temperatures) > 0) == (method == "dspark")


def test_a_target_whose_logits_are_not_its_head_is_refused(target):
    loaded = load_target(str(target), "float32", "cpu")
    info = TargetInfo(loaded.model, str(target), "t", 0)
    check_head(loaded, info)
    loaded.model.lm_head.register_forward_hook(lambda module, args, output: output.tanh())
    with pytest.raises(ConfigError, match="soft-capping"):
        check_head(loaded, info)


def test_only_answers_that_were_asked_for_are_trained_on(target, prompts, tmp_path):
    answers = [
        {"id": f"riddles/{i}/0@{i % 2}", "prompt_token_ids": [5, 6, 7], "output_token_ids": [8 + i % 9] * 8}
        for i in range(600)
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    result = train("mtp", target, prompts, tmp_path, tmp_path / "out", "--epochs", "0.1")
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["data"]["sources"].keys() == {"questions", "self"}
    riddles = prompts.with_name("riddles.jsonl")
    riddles.write_text(prompts.read_text())
    more = ("--epochs", "0.1", "--self-prompts", "0", "--temperature", "1")
    assert train("mtp", target, riddles, tmp_path, tmp_path / "out2", *more).exit_code == 0
    record = json.loads((tmp_path / "out2" / RECORD).read_text())
    assert record["data"]["sources"].keys() == {"riddles"}
    # 1500 tokens of the 300 answers at this temperature
    assert 150 < record["data"]["sources"]["riddles"]["answers"] <= 188
