"""``adaverify report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaverify.cli.console import err
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.lab.report import Report


def report(
    traces: Annotated[list[Path], typer.Argument(help="Folders that `adaverify record` or `serve --record` wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(help="Write the figures as PNG into this folder too.")] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Acceptance of drafts",
) -> None:
    """Draw recorded traces: one self-contained HTML page."""
    if not output.parent.is_dir():
        raise ConfigError(f"cannot write {output}: the folder {output.parent} does not exist")
    if output.is_dir():
        raise ConfigError(f"cannot write {output}: it is a folder; name a file, such as {output / 'report.html'}")
    try:
        from adaverify.lab.report import Report
        from adaverify.lab.trace import read_trace
    except ImportError as error:
        raise ConfigError(f"reports need pyarrow and matplotlib ({error}): pip install 'adaverify[lab]'") from error
    drawn = Report.of(read_trace(traces))
    _write(drawn, output, png, title)


def _write(drawn: Report, output: Path, png: Path | None, title: str) -> None:
    try:
        output.write_text(drawn.html(title), encoding="utf-8")
        files = [] if png is None else drawn.write_png(png)
    except OSError as error:
        raise ConfigError(f"cannot write the report ({error}); give another file or folder") from error
    err.print(f"{drawn.num_figures} figures written to {output}", soft_wrap=True, markup=False)
    if png is not None:
        err.print(f"{len(files)} PNG files written to {png}", soft_wrap=True, markup=False)
