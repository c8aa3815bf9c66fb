"""adaverify: adaptive verification for speculative decoding.

Verify only the drafts worth their cost, without changing the output distribution.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaverify.engine.llm import LLM
    from adaverify.sampling.params import SamplingParams

__version__ = version("adaverify")
__all__ = ["LLM", "SamplingParams", "__version__"]

_HOMES = {"LLM": "adaverify.engine.llm", "SamplingParams": "adaverify.sampling.params"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import on first use: ``adaverify --help`` need not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'adaverify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
