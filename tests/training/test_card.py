from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaverify.config import SpeculativeConfig
from adaverify.errors import ConfigError
from adaverify.training import card
from adaverify.training.answers import Answer
from adaverify.training.batches import split
from adaverify.training.card import card_text, held_out_prompts, without_folders, write_card


def a_record(**more: Any) -> dict[str, Any]:
    record = {
        "method": "dspark",
        "target": "org/target",
        "init_from": None,
        "data": {
            "sources": {"chat": {"answers": 7, "answer_tokens": 4321}},
            "answer_tokens": 4321,
            "tokens": 5000,
            "held_out_answers": 3,
        },
        "steps": 1234,
        "seconds": 90.0,
        "curve": [
            {"step": 600, "tokens": 70_000, "seconds": 45.0, "loss": 3.25, "acceptance": [0.4, 0.3]},
            {"step": 1234, "tokens": 140_000, "seconds": 90.0, "loss": 2.5, "acceptance": [0.6, 0.5]},
            {"step": 1234, "tokens": 140_000, "seconds": 90.0, "loss": 2.5, "acceptance": [0.6, 0.5]},
        ],
    }
    return record | more


def finished(**more: Any) -> dict[str, Any]:
    """A record as a card leaves it."""
    return a_record(
        command="adaverify train dspark",
        commit="v1-2-gabc",
        versions={"adaverify": "0.1", "speculators": None},
        checkpoint_bytes=12_300_000,
        **more,
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Folder of a checkpoint without a card."""
    folder = tmp_path / "tiny-dspark"
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps(a_record()))
    (folder / "model.safetensors").write_bytes(b"x" * 2_000_000)
    return folder


def test_the_card_tells_all_that_the_record_says() -> None:
    text = card_text("tiny-dspark", finished())
    for told in (
        "# tiny-dspark", "`dspark`", "`org/target`", "| chat | 7 | 4321 |", "4,321 tokens", "5,000 with", "1.5 minutes",
        "1,234 steps", "v1-2-gabc", "adaverify 0.1, speculators absent", "12.3 MB", "    adaverify train dspark\n",
        "| 70,000 | 0.8 | 3.250 | 0.40 0.30 |", "Not measured.", "Apache-2.0",
    ):  # fmt: skip
        assert told in text, told
    assert text.count("| 140,000 |") == 1
    assert "It began with" not in text
    assert "weights of `older`" in card_text("tiny-dspark", finished(init_from="older"))


def test_the_serving_configuration_of_the_card_is_valid() -> None:
    text = card_text("tiny-dspark", finished())
    config = SpeculativeConfig.parse(text.split("--speculative-config '")[1].split("'")[0])
    assert config is not None
    assert (config.method, config.model, config.num_speculative_tokens) == ("dspark", "tiny-dspark", 2)


def test_without_prompts_nothing_is_measured_and_the_record_is_completed(checkpoint: Path) -> None:
    write_card(checkpoint, "no/target", checkpoint / "no-cache", "adaverify train dspark --out /home/me/tiny-dspark", 0)
    record = json.loads((checkpoint / "training.json").read_text())
    assert record["command"] == "adaverify train dspark --out tiny-dspark"
    assert record["checkpoint_bytes"] == 2_000_000
    assert set(record["versions"]) == {"adaverify", "torch", "transformers", "speculators"}
    assert record["commit"]
    assert "measured" not in record
    assert (checkpoint / "README.md").read_text() == card_text("tiny-dspark", record)
    assert "Not measured." in (checkpoint / "README.md").read_text()


def test_a_card_written_again_keeps_the_command_and_the_commit(checkpoint: Path) -> None:
    (checkpoint / "training.json").write_text(json.dumps(finished()))
    write_card(checkpoint, "no/target", checkpoint, "adaverify train dspark --measure-prompts 0", 0)
    record = json.loads((checkpoint / "training.json").read_text())
    assert (record["command"], record["commit"]) == ("adaverify train dspark", "v1-2-gabc")


def test_what_was_measured_is_in_card_and_record(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"accepted_given_reached": [0.75, None], "accepted_by_rounds": [0.7, 0.0], "accepted_per_round": 0.7,
           "rounds": 1000}  # fmt: skip
    measured = {"prompts": 5, "max_tokens": 128, "num_speculative_tokens": 2, "dtype": "float32",
                "by_temperature": {"0": run, "1": run}}  # fmt: skip
    monkeypatch.setattr(card, "_measure", lambda folder, target, record, prompts, dtype, device: measured)
    monkeypatch.setattr(card, "held_out_prompts", lambda answers, num_prompts: [[1]] * num_prompts)
    (checkpoint / "answers.jsonl").write_text("")
    write_card(checkpoint, "no/target", checkpoint, "adaverify train dspark", 5)
    text = (checkpoint / "README.md").read_text()
    assert "| 1, top-p 0.95 | 0.75 - | 0.70 0.00 | 0.70 | 1,000 |" in text
    assert "5 prompts" in text
    assert json.loads((checkpoint / "training.json").read_text())["measured"] == measured


def test_held_out_prompts_are_distinct_and_unseen() -> None:
    answers = [Answer(f"chat/{i}/0@{t}", [i], [1]) for i in range(300) for t in (0, 1)]
    _, held_out = split([SimpleNamespace(id=answer.id, prompt=answer) for answer in answers], 0.03)
    expected = list(dict.fromkeys(sample.prompt.prompt_token_ids[0] for sample in held_out))
    assert 2 < len(expected) < 30
    assert held_out_prompts(answers, 300) == [[i] for i in expected]
    assert held_out_prompts(answers, 2) == [[i] for i in expected[:2]]
    # the same tokens among the training texts, under another name
    trained = next(answer for answer in answers if answer.prompt_token_ids[0] not in expected)
    twin = Answer(trained.id, [expected[0]], [1])
    assert held_out_prompts([*answers, twin], 300) == [[i] for i in expected[1:]]


def test_no_held_out_prompt_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="--measure-prompts 0"):
        held_out_prompts([], 4)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.json"):
        write_card(tmp_path, "no/target", tmp_path, "", 0)


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/data/sets/chat.jsonl:3", "chat.jsonl:3"),
        ("--cache=/data/sets", "--cache=sets"),
        ("../shared/chat.jsonl", "chat.jsonl"),
        ("~/chat.jsonl", "chat.jsonl"),
        ("models/drafter", "models/drafter"),
        ("org/target", "org/target"),
        ("0.95", "0.95"),
    ],
)
def test_commands_keep_no_folders_of_the_machine(word: str, kept: str) -> None:
    assert without_folders(f"adaverify train x '{word}'").split()[-1].strip("'") == kept


def test_the_commit_is_unknown_outside_our_own_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "venv" / "lib" / "adaverify"
    package.mkdir(parents=True)
    monkeypatch.setattr(card, "__file__", str(package / "training" / "card.py"))
    assert card.commit() == "unknown"
    # somebody else's repository, in which the package is installed
    author = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init"], [*author, "commit", "--allow-empty", "-m", "theirs"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)
    assert card.commit() == "unknown"
