"""``adaverify audit``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from adaverify.cli.console import out

audit = typer.Typer(help="Check what adaverify promises.", no_args_is_help=True)


@audit.callback()
def _options() -> None:
    pass


@audit.command()
def exactness(as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False) -> None:
    """Enumerate the output law of every shipped and every forbidden rule; exit 1 unless all pass."""
    from adaverify.policy.exactness import audit_exactness

    rows = audit_exactness()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        caption = "biased: a forbidden rule, which must be caught; max_tv: distance from the target's law"
        table = Table("rule", "expected", "max_tv", "verdict", caption=caption)
        for row in rows:
            style = "green" if row.verdict == "pass" else "bold red"
            table.add_row(row.rule, row.expected, f"{row.max_tv:.3g}", Text(row.verdict, style=style))
        out.print(table)
    if any(row.verdict != "pass" for row in rows):
        raise typer.Exit(1)
