"""The file of results, written after every measurement, so that a comparison can be taken up where it broke off."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from adaverify.errors import ConfigError
from adaverify.lab.bench.plan import Cell
from adaverify.lab.bench.settings import Settings

FILE = "bench.json"
_FORMAT = 1
_SAME_IN_ALL_SESSIONS = ("commit", "versions", "machine")


class Store:
    """Results of one comparison in ``FOLDER/bench.json``.

    Parameters
    ----------
    folder : Path
        Made if need be.
    settings : Settings
    provenance : dict
        Of this run.

    Raises
    ------
    ConfigError
        The folder holds results of something else, or of another version or machine, or what is no result.
    """

    def __init__(self, folder: Path, settings: Settings, provenance: dict[str, Any]) -> None:
        self.path = folder / FILE
        self.document = self._read() or {
            "format": _FORMAT,
            "name": "adaverify bench",
            "settings": settings.to_dict(),
            "sessions": [],
            "cells": [],
        }
        self._check(settings, provenance)
        # A run that only sums up, or draws anew, is no session.
        self._provenance = provenance
        self._session: int | None = None

    @property
    def cells(self) -> list[dict[str, Any]]:
        """All measurements."""
        cells: list[dict[str, Any]] = self.document["cells"]
        return cells

    def missing(self, groups: list[list[Cell]]) -> list[list[Cell]]:
        """The groups that are not complete: they are measured anew, since a pair that lies hours apart is none."""
        good = {_key(cell) for cell in self.cells if not cell["failed"]}
        return [group for group in groups if any(cell.key not in good for cell in group)]

    def drop(self, group: list[Cell]) -> None:
        """Forget what was measured of a group."""
        keys = {cell.key for cell in group}
        self.document["cells"] = [cell for cell in self.cells if _key(cell) not in keys]

    def add(self, cell: Cell, position: int, measured: dict[str, Any]) -> None:
        """Keep one measurement."""
        if self._session is None:
            self._session = len(self.document["sessions"])
            self.document["sessions"].append(self._provenance)
        number, workload, load, arm = cell.key
        head = {"pass": number, "workload": workload, "load": load, "arm": arm, "position": position}
        self.cells.append({**head, "session": self._session, **cell.load.to_dict(), **measured})
        self.write()

    def keep(self, key: str, value: Any) -> Any:
        """What was kept under ``key`` before, else ``value``, which is kept from now on."""
        return self.document.setdefault(key, value)

    def write(self) -> None:
        """Write the file; a crash leaves the old one or the new one.

        Raises
        ------
        ConfigError
            It cannot be written.
        """
        part = self.path.with_suffix(".partial")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self.document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path} ({error}); give another --output") from error

    def _read(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        try:
            document = dict(json.loads(self.path.read_text(encoding="utf-8")))
            if document["format"] != _FORMAT:
                raise ValueError(f"format {document['format']}, this version writes {_FORMAT}")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{self.path} is no result of this version of adaverify bench ({type(error).__name__}: {error}); "
                "give another --output, or delete it"
            ) from error
        return document

    def _check(self, settings: Settings, provenance: dict[str, Any]) -> None:
        before, now = self.document["settings"], json.loads(json.dumps(settings.to_dict()))
        changed = [key for key in now if before.get(key) != now[key] and key != "fingerprint"]
        if before.get("fingerprint") != now["fingerprint"]:
            raise ConfigError(
                f"{self.path} holds another comparison: {', '.join(changed) or 'the folders of models'} changed. "
                "Repeat the command as it was to take it up again (--passes may grow), or give another --output"
            )
        for session in self.document["sessions"]:
            other = [key for key in _SAME_IN_ALL_SESSIONS if session.get(key) != provenance.get(key)]
            if other:
                raise ConfigError(
                    f"{self.path} was measured with another {' and another '.join(other)}, and cannot be mixed with "
                    "what would be measured now; give another --output"
                )


def _key(cell: dict[str, Any]) -> tuple[int, str, str, str]:
    return cell["pass"], cell["workload"], cell["load"], cell["arm"]
