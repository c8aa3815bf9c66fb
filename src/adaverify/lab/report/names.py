"""Names that users gave, made fit for a figure, a file and a sentence; and the drafters of a trace."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from adaverify.lab.evaluate.sample import pairs_of
from adaverify.lab.trace import Trace


def plain(name: str) -> str:
    """``name`` without the control characters that no page and no figure can hold, and never empty."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    return shown if shown.strip() else "(unnamed)"


def shortened(name: str, letters: int) -> str:
    """At most so many letters; what matters is often at either end, so the middle goes."""
    if len(name) > letters:
        head = (letters - 1) * 2 // 3
        name = f"{name[:head]}…{name[len(name) - (letters - 1 - head) :]}"
    # A legend leaves out what begins with an underscore.
    return f"\N{HAIR SPACE}{name}" if name.startswith("_") else name


def folded(text: str, letters: int) -> str:
    """Lines of at most so many letters, three at most."""
    return "\n".join(textwrap.wrap(text, letters, max_lines=3, placeholder=" …"))


def file_name(name: str) -> str:
    """``name`` in letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:60] or "unnamed"


def drafter_name(trace: Trace) -> str:
    """What drafted, how and for which target, of a trace of one drafter."""
    run = trace.runs[0]
    manner = [run.method]
    manner += ["coupled"] if run.is_coupled else []
    manner += ["greedy drafts"] if run.draft_sample_method == "greedy" else []
    manner += ["trimmed"] if run.trimmed else []
    return f"{plain(run.drafter)} ({plain(', '.join(manner))}) for {plain(run.target)}"


def dataset_name(trace: Trace, index: int) -> str:
    """Name of a dataset of the trace."""
    return plain(trace.datasets[index])


def by_drafter(trace: Trace) -> Iterator[Trace]:
    """The parts of a trace that one drafter recorded for one target in one manner, in the order of their first runs."""
    pairs = pairs_of(trace.runs)
    for pair in pairs:
        yield trace if len(pairs) == 1 else trace.of_runs(pair.runs)
