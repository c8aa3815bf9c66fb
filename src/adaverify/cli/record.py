"""``adaverify record``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from adaverify.cli.console import announce, err
from adaverify.cli.lab import needs_lab
from adaverify.cli.options import engine_values, with_engine_flags

_PROMPTS = "Prompts"


@with_engine_flags
def record(
    prompts: Annotated[
        list[Path], typer.Argument(help="JSONL files with turns, messages or a prompt a line; names name datasets.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the trace; may hold others.")],
    target: Annotated[
        str | None, typer.Option(help="Folder or hub name of the target; SmolLM2-135M-Instruct if omitted.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="First prompts of each file; all by default.", rich_help_panel=_PROMPTS)
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.", rich_help_panel=_PROMPTS)] = 256,
    temperature: Annotated[
        list[float] | None,
        typer.Option(min=0, help="1 by default; repeat to let prompts take turns.", rich_help_panel=_PROMPTS),
    ] = None,
    top_p: Annotated[float, typer.Option(min=0, max=1, rich_help_panel=_PROMPTS)] = 0.95,
    first_seed: Annotated[
        int, typer.Option(min=0, help="Seed of the first prompt; the next count on.", rich_help_panel=_PROMPTS)
    ] = 0,
    no_trim: Annotated[
        bool, typer.Option("--no-trim", help="Verify every draft, so that labels reach up to the first rejection.")
    ] = False,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="Also record 1 - TV(p, q), the true chance of acceptance; slower.")
    ] = False,
    engine_flags: dict[str, Any] | None = None,
) -> None:
    """Answer prompts and record every draft and its fate."""
    with needs_lab("record"):
        from adaverify.lab.recording import answer, conversations
        from adaverify.lab.trace.recorder import Recorder
    from adaverify.sampling.params import SamplingParams
    from adaverify.training.prompts import read_source

    each = [
        SamplingParams(temperature=t, top_p=top_p, max_tokens=max_tokens, seed=first_seed) for t in temperature or [1.0]
    ]
    work = conversations([read_source(str(path)) for path in prompts], limit, each)
    values = engine_values(target, engine_flags or {}, default_drafts=True)
    announce(values["model"])
    from adaverify import LLM
    from adaverify.engine.profiling import profile_costs

    engine = LLM(**values).engine
    if engine.speculation is not None:
        # the trace carries the costs, for replays: measured even where nothing is trimmed by them
        if engine.speculation.cost_table is None:
            engine.speculation.set_costs(profile_costs(engine))
        engine.speculation.adaptive &= not no_trim
    recorder = Recorder(engine, output, wants_overlaps=overlap)
    try:
        with Progress(console=err, transient=True) as progress:
            task = progress.add_task("Answering", total=sum(len(one.turns) for one in work))
            errors = answer(engine, work, lambda done: progress.update(task, completed=done))
    finally:
        recorder.close()
    err.print(f"{recorder.num_drafts} drafts in {output}, {recorder.num_labelled} of them accepted or rejected")
    if errors:
        err.print(f"{len(errors)} completions failed; the first: {errors[0]}", markup=False)
        raise typer.Exit(1)
