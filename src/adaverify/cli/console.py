"""Where the commands write: results on standard output, everything else on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def announce(model: str) -> None:
    """Say what is being loaded; progress bars, if any, are drawn by who loads."""
    err.print(f"Loading {model} ...", style="dim", markup=False)


def fail(error: Exception) -> None:
    """Print an error as one red line."""
    err.print(Text(f"error: {' '.join(str(error).split())}", style="bold red"), soft_wrap=True)
