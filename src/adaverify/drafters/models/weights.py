"""Tensors of a draft model's folder, under the names of ``speculators``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from adaverify.errors import ConfigError

# the target's own, kept for training; tables that are computed; a placeholder of published DFlash
_IGNORED = re.compile(r"^(verifier_norm|verifier_lm_head)\.|rotary_emb\.|^mask_embedding|^t2d$")
_RENAMED = (
    (re.compile(r"^model\.(?=.)"), ""),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"_codebook\.weight$"), "_codebook"),
    (re.compile(r"^draft_id_to_target_id$"), "d2t"),
)


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """Every tensor of the checkpoint in ``folder`` that the draft model may need.

    Raises
    ------
    ConfigError
        There is no checkpoint, or it cannot be read.
    """
    folder = Path(folder).expanduser()
    tensors: dict[str, Tensor] = {}
    for file in _files(folder):
        try:
            if file.suffix == ".safetensors":
                tensors |= load_file(file)
            else:
                tensors |= torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ConfigError(f"{file} cannot be read ({error}); fetch the draft model again") from error
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, replacement in _RENAMED:
            name = pattern.sub(replacement, name)
        if not _IGNORED.search(name):
            renamed[name] = tensor
    return renamed


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, torch.Size], folder: str | Path) -> None:
    """Refuse a checkpoint that lacks tensors, has others, or has them in other shapes.

    Raises
    ------
    ConfigError
        Names all of them, with shapes.
    """
    problems = [f"{name} {_shape(shape)} is missing" for name, shape in expected.items() if name not in found] + [
        f"{name} is {_shape(found[name].shape)}, expected {_shape(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    problems += [f"{name} {_shape(t.shape)} is not known" for name, t in found.items() if name not in expected]
    if problems:
        raise ConfigError(
            f"{folder}: the weights do not fit config.json: {'; '.join(problems)}. "
            "Fetch the draft model again, or use one of a supported layout"
        )


def target_ids(d2t: Tensor | None, draft_vocab_size: int, vocab_size: int, folder: str | Path) -> Tensor | None:
    """The target's id of each draft token; None if the vocabularies are the same.

    Parameters
    ----------
    d2t : Tensor [Vd], int, optional
        Checkpoints store how much larger the target's id is than the draft id.

    Raises
    ------
    ConfigError
        The table is missing, has another length, or names no or the same token twice.
    """
    if d2t is None:
        if draft_vocab_size == vocab_size:
            return None
        raise ConfigError(
            f"{folder}: d2t [{draft_vocab_size}] is missing, so nobody knows what the draft vocabulary stands for; "
            "fetch the draft model again"
        )
    check_tensors({"d2t": d2t}, {"d2t": torch.Size([draft_vocab_size])}, folder)
    ids = torch.arange(draft_vocab_size) + d2t.long()
    valid = bool((ids >= 0).all() and (ids < vocab_size).all() and len(ids.unique()) == draft_vocab_size)
    if not valid or (draft_vocab_size == vocab_size and bool(d2t.any())):
        raise ConfigError(
            f"{folder}: d2t does not map {draft_vocab_size} draft tokens to different ones of the target's "
            f"{vocab_size}; fetch the draft model again"
        )
    return ids if draft_vocab_size != vocab_size else None


def _files(folder: Path) -> list[Path]:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).exists():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.exists():
            try:
                shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise ConfigError(f"{index} cannot be read ({error}); fetch the draft model again") from error
            return [folder / shard for shard in shards]
    raise ConfigError(f"{folder} holds neither model.safetensors nor pytorch_model.bin; fetch the draft model again")


def _shape(shape: torch.Size) -> str:
    return str(list(shape))
