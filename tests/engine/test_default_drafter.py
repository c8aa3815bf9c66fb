from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaverify.config import SpeculativeConfig
from adaverify.engine.default_drafter import NEEDED_FILES, default_drafter, models_dir
from adaverify.errors import ConfigError

CHOICE = {"model": "tiny-eagle3", "method": "eagle3", "num_speculative_tokens": 3}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models with a whole default drafter."""
    monkeypatch.setenv("ADAVERIFY_MODELS", str(tmp_path))
    (tmp_path / "default.json").write_text(json.dumps(CHOICE))
    (tmp_path / "tiny-eagle3").mkdir()
    for name in NEEDED_FILES:
        (tmp_path / "tiny-eagle3" / name).write_text("x")
    return tmp_path


def test_the_folder_is_the_source_trees_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAVERIFY_MODELS", "elsewhere")
    assert models_dir() == Path("elsewhere")
    monkeypatch.delenv("ADAVERIFY_MODELS")
    assert models_dir() == Path(__file__).resolve().parents[2] / "models"


def test_the_repositorys_own_choice_is_a_valid_configuration() -> None:
    choice = json.loads((Path(__file__).resolve().parents[2] / "models" / "default.json").read_text())
    assert SpeculativeConfig.parse(choice) is not None


def test_the_drafter_is_found_and_verified_adaptively(models: Path) -> None:
    told: list[str] = []
    assert default_drafter(told.append) == {
        **CHOICE,
        "model": str(models / "tiny-eagle3"),
        "enable_adaptive_verification": True,
    }
    assert told == []


@pytest.mark.parametrize("missing", ["default.json", *(f"tiny-eagle3/{name}" for name in NEEDED_FILES)])
def test_what_is_missing_is_told_in_one_line(models: Path, missing: str) -> None:
    (models / missing).unlink()
    told: list[str] = []
    assert default_drafter(told.append) is None
    assert len(told) == 1
    assert Path(missing).name in told[0]
    assert "\n" not in told[0]


@pytest.mark.parametrize(
    "text",
    ["{", "[]", json.dumps({"method": "eagle3"}), json.dumps(CHOICE | {"typo": 1}), json.dumps(CHOICE | {"model": 3})],
)
def test_a_broken_choice_is_an_error_that_names_the_file(models: Path, text: str) -> None:
    (models / "default.json").write_text(text)
    with pytest.raises(ConfigError, match=r"default\.json"):
        default_drafter()
