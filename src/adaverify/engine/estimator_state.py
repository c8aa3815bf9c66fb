"""Keeps what an estimator has learned in a file, so that a server that starts again starts warm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from adaverify.config import EngineConfig
from adaverify.errors import ConfigError
from adaverify.policy.acceptance import AcceptanceEstimator


def save_state(path: str | Path, estimator: AcceptanceEstimator, config: EngineConfig) -> None:
    """Write an estimator's state; the file is replaced as a whole or not at all.

    Parameters
    ----------
    path : str or Path
        Its folder exists.
    estimator : AcceptanceEstimator
    config : EngineConfig
        Under which it learned; only a server that drafts alike may take the state over.
    """
    path = Path(path)
    state = estimator.state_dict()
    tensors = {name: value.cpu().contiguous() for name, value in state.items() if torch.is_tensor(value)}
    numbers = {name: value for name, value in state.items() if not torch.is_tensor(value)}
    metadata = {"drafting": json.dumps(_drafting(config)), "numbers": json.dumps(numbers)}
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata)
    os.replace(partial, path)


def load_state(path: str | Path, estimator: AcceptanceEstimator, config: EngineConfig) -> bool:
    """Take over a state that :func:`save_state` wrote, if the file is there.

    Returns
    -------
    bool
        Whether there was a file.

    Raises
    ------
    ConfigError
        The file is no such state, or was learned from other drafts; or its folder does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"estimator_state {path}: the folder {path.parent} does not exist; make it first")
    if not path.exists():
        return False
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        drafting, numbers = json.loads(metadata["drafting"]), json.loads(metadata["numbers"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ConfigError(f"estimator_state {path} is not a state that adaverify wrote ({error}); remove it") from error
    own = _drafting(config)
    changed = [f"{name} {drafting.get(name)!r}, here {own[name]!r}" for name in own if drafting.get(name) != own[name]]
    if changed:
        raise ConfigError(
            f"estimator_state {path} was learned with {'; '.join(changed)}: name another file, or remove this one"
        )
    try:
        estimator.load_state_dict(state | numbers)
    except ConfigError as error:
        raise ConfigError(
            f"estimator_state {path} is of another version's estimator ({error}); remove it, another is soon learned"
        ) from error
    return True


def _drafting(config: EngineConfig) -> dict[str, Any]:
    """What the meaning of the coefficients depends on."""
    speculative = config.speculative_config
    assert speculative is not None
    names = ("method", "num_speculative_tokens", "estimator", "rejection_sample_method", "draft_sample_method")
    models = {"target": Path(config.model).name, "model": Path(speculative.model).name}
    return {**models, **{name: getattr(speculative, name) for name in names}}
