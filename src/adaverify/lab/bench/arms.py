"""The arms of a comparison: one server each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adaverify.config import SpeculativeConfig
from adaverify.errors import ConfigError

_NAME = re.compile(r"[\w.-]+")
_DEPTHS = re.compile(r"k(\d+)(?:-(?:k)?(\d+))?")
_FORMS = (
    "an arm is k0 (no speculation), k3 (every one of 3 drafts verified), k0-7 (each of them), av (adaptive), "
    "NAME={...} (a speculative configuration, or changes to that of --speculative-config), NAME=http://... (a server "
    "that runs) or NAME=COMMAND with {port} in it (a server to start)"
)


@dataclass(frozen=True)
class Arm:
    """One server of the comparison.

    Attributes
    ----------
    name : str
    speculative : SpeculativeConfig, optional
        Of a server of ours; None serves without speculation.
    url : str, optional
        Base URL of a server that runs already.
    command : str, optional
        Shell words that start a foreign server; ``{port}`` stands for its port.
    """

    name: str
    speculative: SpeculativeConfig | None = None
    url: str | None = None
    command: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it is a server of ours, started here."""
        return self.url is None and self.command is None

    @property
    def is_adaptive(self) -> bool:
        """Whether it verifies only the drafts worth their cost."""
        return self.speculative is not None and self.speculative.enable_adaptive_verification

    @property
    def fixed_depth(self) -> int | None:
        """K where all of K drafts are verified, 0 without speculation; None for adaptive and foreign servers."""
        if not self.is_ours or self.is_adaptive:
            return None
        return 0 if self.speculative is None else self.speculative.num_speculative_tokens

    def is_off_of(self, other: Arm) -> bool:
        """Whether this is ``other`` with adaptive verification off, and nothing else changed."""
        if self.speculative is None or other.speculative is None or not other.is_adaptive:
            return False
        return self.speculative == other.speculative.model_copy(update={"enable_adaptive_verification": False})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        speculative = None if self.speculative is None else self.speculative.model_dump()
        return {"name": self.name, "speculative_config": speculative, "url": self.url, "command": self.command}


def is_foreign(text: str) -> bool:
    """Whether an arm as written on the command line is a server that is not ours."""
    value = text.partition("=")[2]
    return value.startswith(("http://", "https://")) or (bool(value) and not value.startswith("{"))


def parse_arms(texts: Sequence[str], base: SpeculativeConfig | None) -> tuple[Arm, ...]:
    """Read arms as written on the command line.

    Parameters
    ----------
    texts : sequence of str
        Empty stands for each K from 0 to that of ``base``, and adaptive verification.
    base : SpeculativeConfig, optional
        What ``k3`` and ``av`` are made of.

    Raises
    ------
    ConfigError
        A form is unknown, a name comes twice, or an arm needs a drafter and there is none.
    """
    if not texts:
        if base is None:
            raise ConfigError(
                "there is nothing to compare: name a drafter with --speculative-config, or arms with --arm"
            )
        texts = [f"k0-{base.num_speculative_tokens}", "av"]
    arms = [arm for text in texts for arm in _arms(text, base)]
    names = [arm.name for arm in arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two arms are called {', '.join(twice)}; give each a name of its own")
    return tuple(arms)


def _arms(text: str, base: SpeculativeConfig | None) -> list[Arm]:
    name, equals, value = text.partition("=")
    if not equals:
        return _shortcut(text, base)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the arm name {name!r} may hold letters, digits, '.', '_' and '-' only")
    if value.startswith("{"):
        return [Arm(name, _configured(name, value, base))]
    if value.startswith(("http://", "https://")):
        return [Arm(name, url=value.rstrip("/").removesuffix("/v1"))]
    if "{port}" in value:
        return [Arm(name, command=value)]
    raise ConfigError(f"cannot read the arm {text!r}; {_FORMS}")


def _shortcut(text: str, base: SpeculativeConfig | None) -> list[Arm]:
    depths = _DEPTHS.fullmatch(text)
    if depths is not None:
        first = int(depths[1])
        return [Arm(f"k{k}", _fixed(text, k, base)) for k in range(first, int(depths[2] or first) + 1)]
    if text == "av":
        return [Arm(text, _changed(_needed(text, base), {"enable_adaptive_verification": True}))]
    raise ConfigError(f"cannot read the arm {text!r}; {_FORMS}")


def _fixed(text: str, depth: int, base: SpeculativeConfig | None) -> SpeculativeConfig | None:
    if depth == 0:
        return None
    return _changed(_needed(text, base), {"num_speculative_tokens": depth, "enable_adaptive_verification": False})


def _configured(name: str, text: str, base: SpeculativeConfig | None) -> SpeculativeConfig | None:
    """A whole configuration if it names a drafter, else changes to ``base``."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"arm {name}: not valid JSON ({error}): {text!r}") from error
    if {"method", "model"} & given.keys():
        return SpeculativeConfig.parse(given)
    return _changed(_needed(name, base), given)


def _changed(base: SpeculativeConfig, changes: dict[str, Any]) -> SpeculativeConfig | None:
    return SpeculativeConfig.parse(base.model_dump() | changes)


def _needed(text: str, base: SpeculativeConfig | None) -> SpeculativeConfig:
    if base is None:
        raise ConfigError(f"the arm {text!r} needs a drafter: name one with --speculative-config")
    return base
