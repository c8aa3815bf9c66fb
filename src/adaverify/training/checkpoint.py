"""The folder of a trained drafter: configuration and tensors in the format of speculators, and its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from adaverify.errors import ConfigError
from adaverify.training.recipes import Recipe

WEIGHTS, RECORD = "model.safetensors", "training.json"


def save_drafter(recipe: Recipe, out: Path, extra_config: dict[str, Any]) -> None:
    """Write ``config.json`` and the tensors in the format of speculators."""
    config = json.loads(recipe.model.config.to_json_string(use_diff=False))
    config |= {"dtype": "bfloat16"} | extra_config
    config["speculators_config"]["verifier"]["name_or_path"] = recipe.target.name
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    partial = out / "weights.partial"
    save_file({name: t.contiguous().cpu() for name, t in recipe.saved_tensors.items()}, partial, {"format": "pt"})
    partial.rename(out / WEIGHTS)


def weights_of(folder: Path) -> Path:
    """The file of a checkpoint's tensors.

    Raises
    ------
    ConfigError
        There is none.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise ConfigError(f"--init-from {str(folder)!r}: holds no {WEIGHTS}")
    return path


def stages_up_to(folder: Path) -> list[dict[str, Any]]:
    """What was trained, one run after the other, up to a checkpoint; nothing where its training left no record."""
    path = folder / RECORD
    if not path.is_file():
        return []
    record = json.loads(path.read_text())
    own = {name: record.get(name) for name in ("method", "command", "commit", "steps", "seconds")}
    own |= {"tokens": record["curve"][-1]["tokens"], "answer_tokens": record["data"]["answer_tokens"]}
    return [*record.get("earlier_stages", []), own]


def start_from(recipe: Recipe, folder: Path) -> None:
    """Begin with the tensors of another checkpoint, where name and shape agree.

    Raises
    ------
    ConfigError
        There is no checkpoint, or none of its tensors fits.
    """
    own: dict[str, Tensor] = recipe.model.state_dict()
    fitting = {
        name: tensor.to(own[name].dtype)
        for name, tensor in load_file(weights_of(folder)).items()
        if name in own and own[name].shape == tensor.shape and tensor.is_floating_point()
    }
    if not fitting:
        raise ConfigError(f"--init-from {str(folder)!r}: no tensor fits a {recipe.method} drafter of this size")
    recipe.take_over(fitting)
