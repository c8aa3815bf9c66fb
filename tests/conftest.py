"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support import Pair, save_related_model, save_tiny_model

# the cores are shared with other work, and tiny models gain nothing from more threads
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Tiny target and a drafter that agrees with it now and then: 48 tokens, 128 positions."""
    folder = tmp_path_factory.mktemp("pair")
    target = save_tiny_model(folder / "target", seed=1, vocab_size=48, scale=4.0)
    return Pair(target, save_related_model(folder / "drafter", target, noise=0.03, seed=2))


@pytest.fixture(scope="session")
def default_model_folder() -> Path:
    """Folder of SmolLM2-135M-Instruct, fetched once; the test is skipped where no source can be reached."""
    from adaverify.engine.default_model import default_model_path
    from adaverify.errors import ConfigError

    try:
        return default_model_path(progress=False)
    except ConfigError as error:
        pytest.skip(f"the default model could not be had: {error}")
