"""What the lab's commands share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from adaverify.errors import ConfigError

_LAB_PACKAGES = {"pyarrow", "sklearn", "matplotlib", "scipy", "httpx", "prometheus_client"}


@contextmanager
def needs_lab(command: str) -> Iterator[None]:
    """Import the lab inside, or say what to install.

    Raises
    ------
    ConfigError
        A package of the extra ``lab`` is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _LAB_PACKAGES:
            raise
        raise ConfigError(f"adaverify {command} needs the package {package}: pip install 'adaverify[lab]'") from error
