"""Tables of costs with where they come from: measured, published, or worked out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from adaverify.errors import ConfigError
from adaverify.lab.replay import Rounds, recorded_costs
from adaverify.policy.cost import CostTable

_FOLDER = files("adaverify.lab.plan") / "tables"


@dataclass(frozen=True)
class SourcedCosts:
    """A cost table, and how far it can be trusted.

    Attributes
    ----------
    costs : CostTable
    name : str
    kind : str
        ``measured``; ``published``: fitted to published figures; ``roofline``: from data sheets, and optimistic.
    what : str
        Machine, target and drafter.
    source, derivation : str
        Where the figures are from, and what was made of them.
    per_pass : bool
        ``costs.draft`` is one pass of a drafter that makes one for each draft, not a whole block of any K.
    fit : dict
        Of a fitted table: its parameters and residuals.
    """

    costs: CostTable
    name: str
    kind: str
    what: str
    source: str = ""
    derivation: str = ""
    per_pass: bool = False
    fit: dict[str, Any] = field(default_factory=dict)

    def for_drafter(self, num_speculative_tokens: int, in_parallel: bool) -> CostTable:
        """The table for a drafter of that depth, which drafts a block in one pass or each draft in one."""
        draft = self.costs.draft
        if not self.per_pass or in_parallel or draft is None:
            return self.costs
        block = replace(draft, costs=tuple(num_speculative_tokens * cost for cost in draft.costs))
        return replace(self.costs, draft=block, draft_first=draft)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**vars(self), "costs": self.costs.to_dict()}

    @classmethod
    def from_dict(cls, values: Any, name: str) -> SourcedCosts:
        """Read what :meth:`to_dict` wrote, or a bare cost table as ``adaverify profile`` writes it.

        Raises
        ------
        ConfigError
            It is neither.
        """
        if not isinstance(values, dict) or "costs" not in values:
            return cls(CostTable.from_dict(values), name, "measured", "as given")
        given: dict[str, Any] = {"name": name, "kind": "measured", "what": "as given"}
        given |= {key: value for key, value in values.items() if key in cls.__dataclass_fields__}
        return cls(**(given | {"costs": CostTable.from_dict(values["costs"])}))


def shipped_tables() -> list[str]:
    """Names of the tables that come with the package."""
    return sorted(file.name.removesuffix(".json") for file in _FOLDER.iterdir() if file.name.endswith(".json"))


def load_costs(name_or_file: str) -> SourcedCosts:
    """A shipped table by its name, or one in a file.

    Raises
    ------
    ConfigError
        There is no such table, or the file holds none.
    """
    try:
        if name_or_file in shipped_tables():
            text = (_FOLDER / f"{name_or_file}.json").read_text(encoding="utf-8")
        else:
            text = Path(name_or_file).read_text(encoding="utf-8")
        return SourcedCosts.from_dict(json.loads(text), name_or_file)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--costs {name_or_file}: no cost table ({error}); give {', '.join(shipped_tables())}, or a file that "
            "`adaverify profile -o FILE` wrote"
        ) from error


def costs_in_trace(rounds: Rounds) -> SourcedCosts:
    """The table that was measured when the trace was recorded.

    Raises
    ------
    ConfigError
        There is none.
    """
    costs, run = recorded_costs(rounds)
    return SourcedCosts(costs, "recorded", "measured", f"where run {run} was recorded")
