"""The drafter that is used when no target is named, if this installation has one.

``models/default.json`` says which: ``model`` (a folder beside the file), ``method`` and ``num_speculative_tokens``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from adaverify.config import SpeculativeConfig
from adaverify.errors import ConfigError

VARIABLE = "ADAVERIFY_MODELS"
CHOICE = "default.json"
NEEDED_FILES = ("config.json", "model.safetensors")


def models_dir() -> Path:
    """Folder of the trained drafters: ``$ADAVERIFY_MODELS``, else ``models`` in the source tree's root."""
    if own := os.environ.get(VARIABLE):
        return Path(own).expanduser()
    return Path(__file__).resolve().parents[3] / "models"


def default_drafter(on_missing: Callable[[str], None] = lambda reason: None) -> dict[str, Any] | None:
    """The speculative configuration for the default model, with adaptive verification.

    Parameters
    ----------
    on_missing : callable
        Told in one line why there is no drafter.

    Returns
    -------
    dict or None
        As :class:`adaverify.config.SpeculativeConfig` reads it; None if there is no drafter here.

    Raises
    ------
    ConfigError
        ``default.json`` cannot be read or says something that is not a speculative configuration.
    """
    file = models_dir() / CHOICE
    if not file.is_file():
        on_missing(f"there is no {file}; set {VARIABLE} to a folder that holds one")
        return None
    try:
        choice = dict(json.loads(file.read_text(encoding="utf-8")))
        folder = file.parent / choice["model"]
        config = choice | {"model": str(folder), "enable_adaptive_verification": True}
        SpeculativeConfig.parse(config)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{file} does not name a drafter ({type(error).__name__}: {error}); mend it, or pass --no-speculation"
        ) from error
    # a training that still runs has made the folder, but not these
    missing = [name for name in NEEDED_FILES if not (folder / name).is_file()]
    if missing:
        on_missing(f"the default drafter {folder} lacks {' and '.join(missing)}")
        return None
    return config
