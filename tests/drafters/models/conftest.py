from pathlib import Path

import pytest
from transformers import PreTrainedModel

from drafters.models.reference import load_target, save_target


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("draft_target"))


@pytest.fixture(scope="session")
def target(target_folder: Path) -> PreTrainedModel:
    return load_target(target_folder)
