"""The report of a trace: tables of what was recorded, and every family of figures for every drafter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib

from adaverify.lab.report.canvas import STYLE, Picture
from adaverify.lab.report.figures import FAMILIES, Family
from adaverify.lab.report.names import by_drafter, drafter_name, file_name
from adaverify.lab.report.page import render_page
from adaverify.lab.report.svg import write_png
from adaverify.lab.report.tables import Table, overview
from adaverify.lab.trace import Trace


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Attributes
    ----------
    drafters : tuple of str
        Names of the drafters in the trace.
    tables : tuple of Table
    sections : dict of Family to tuple of Picture
        One picture a drafter in each family.
    """

    drafters: tuple[str, ...]
    tables: tuple[Table, ...]
    sections: dict[Family, tuple[Picture, ...]]

    @classmethod
    def of(cls, trace: Trace) -> Report:
        """Draw everything; a trace of many drafters is taken apart one drafter at a time."""
        pictures: dict[Family, list[Picture]] = {family: [] for family in FAMILIES}
        names = []
        with matplotlib.rc_context(STYLE):
            for part in by_drafter(trace):
                names.append(drafter_name(part))
                for family in FAMILIES:
                    pictures[family].append(family.draw(part))
        sections = {family: tuple(found) for family, found in pictures.items()}
        return cls(tuple(names), tuple(overview(trace)), sections)

    @property
    def num_figures(self) -> int:
        """Figures drawn, without those that had no data."""
        return sum(picture.figure is not None for pictures in self.sections.values() for picture in pictures)

    def html(self, title: str) -> str:
        """One page that needs nothing from outside."""
        return render_page(title, self.drafters, self.tables, self.sections)

    def write_png(self, folder: Path) -> list[Path]:
        """Write each figure as ``FAMILY-DRAFTER.png`` into ``folder``, which is made if need be.

        Returns
        -------
        list of Path
            The files, in the order of the page.
        """
        folder.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for family, pictures in self.sections.items():
            for number, (name, picture) in enumerate(zip(self.drafters, pictures, strict=True), start=1):
                if picture.figure is not None:
                    which = f"{number}-{file_name(name)}" if len(self.drafters) > 1 else file_name(name)
                    written.append(folder / f"{family.key}-{which}.png")
                    write_png(picture.figure, written[-1])
        return written
