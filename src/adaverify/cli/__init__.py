"""Command line; heavy modules are imported by the commands that need them, so that ``--help`` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from adaverify import __version__
from adaverify.cli import audit, bench, evaluate, generate, plan, profile, record, replay, report, serve, train
from adaverify.cli.console import fail
from adaverify.errors import AdaverifyError

app = typer.Typer(
    name="adaverify",
    help="Adaptive verification for speculative decoding: verify only the drafts worth their cost, exactly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    serve.serve,
    generate.generate,
    profile.profile,
    train.train,
    record.record,
    evaluate.evaluate,
    replay.replay,
    plan.plan,
    report.report,
    bench.bench,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(audit.audit, name="audit")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adaverify {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; an error raised on purpose is one red line and exit code 1."""
    try:
        app()
    except AdaverifyError as error:
        fail(error)
        sys.exit(1)
