"""``adaverify profile``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from adaverify.cli.console import announce, err, out
from adaverify.cli.options import engine_values, with_engine_flags
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.policy.cost import CostCurve


@with_engine_flags
def profile(
    target: Annotated[
        str | None, typer.Argument(help="Folder or hub name of the target; SmolLM2-135M-Instruct if omitted.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the JSON here, not to stdout.")] = None,
    engine_flags: dict[str, Any] | None = None,
) -> None:
    """Measure what a step costs, by its size.

    These are the costs that a server starts with. As it serves it keeps them true; /metrics shows how true both are
    (adaverify:step_ms, adaverify:predicted_step_ms, adaverify:step_error_percent).
    """
    if output is not None and not output.parent.is_dir():
        raise ConfigError(f"cannot write {output}: the folder {output.parent} does not exist")
    values = engine_values(target, engine_flags or {})
    announce(values["model"])
    from adaverify import LLM
    from adaverify.engine.profiling import profile_costs

    costs = profile_costs(LLM(**values).engine)
    err.print(curve_table("Target pass", "tokens", costs.verify))
    if costs.draft is not None:
        err.print(curve_table("Drafting a round", "requests", costs.draft))
    if costs.draft_first is not None:
        err.print(curve_table("Of which the first draft", "requests", costs.draft_first))
    text = json.dumps(costs.to_dict(), indent=2)
    if output is None:
        out.print(text, soft_wrap=True, markup=False)
    else:
        output.write_text(text + "\n")
        err.print(f"Written to {output}")


def curve_table(title: str, unit: str, curve: CostCurve) -> Table:
    """Tabulate a cost curve: size, milliseconds, and milliseconds per unit."""
    table = Table(title=title, title_justify="left")
    for heading in (unit, "ms", f"ms per {unit.removesuffix('s')}"):
        table.add_column(heading, justify="right")
    for size, cost in zip(curve.sizes, curve.costs, strict=True):
        table.add_row(str(size), f"{cost:.2f}", f"{cost / size:.3f}")
    return table
