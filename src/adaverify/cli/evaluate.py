"""``adaverify evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from adaverify.cli.console import err, out
from adaverify.errors import ConfigError


def evaluate(
    traces: Annotated[list[Path], typer.Argument(help="Folders that `adaverify record` or `serve --record` wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON document.")] = False,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this dataset; repeat for more.")] = None,
    drafter: Annotated[list[str] | None, typer.Option(help="Only this drafter; repeat for more.")] = None,
    bins: Annotated[int, typer.Option(min=1, max=1000, help="Of the calibration error.")] = 15,
) -> None:
    """Score predictions of acceptance on recorded traces, and judge the paper's claims by them."""
    try:
        import sklearn.linear_model  # noqa: F401

        from adaverify.lab.evaluate import evaluate as evaluate_trace
        from adaverify.lab.evaluate import select
        from adaverify.lab.evaluate.show import tables
        from adaverify.lab.trace import read_trace
    except ImportError as error:
        raise ConfigError(
            f"evaluating needs pyarrow, scipy and scikit-learn ({error}): pip install 'adaverify[lab]'"
        ) from error
    trace = select(read_trace(traces), dataset or [], drafter or [])
    with err.status("reading") as status:
        found = evaluate_trace(trace, bins, on_score=status.update)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
        return
    for table in tables(found):
        out.print(table)
