"""``adaverify generate``."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adaverify.cli.console import announce, err, fail
from adaverify.cli.options import NO_SPECULATION, engine_values, with_engine_flags
from adaverify.errors import RequestFailedError

if TYPE_CHECKING:
    from adaverify.engine.stats import EngineStats
    from adaverify.outputs import RequestOutput


@with_engine_flags
def generate(
    prompts: Annotated[list[str], typer.Argument(help="One or more prompts, generated together.")],
    model: Annotated[
        str | None, typer.Option(help="Folder or hub name of the target; SmolLM2-135M-Instruct if omitted.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send each prompt as a user message.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one completion.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Mass of the nucleus.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely tokens kept; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Least probability kept, relative to the largest.")] = 0.0,
    presence_penalty: Annotated[float, typer.Option()] = 0.0,
    frequency_penalty: Annotated[float, typer.Option()] = 0.0,
    repetition_penalty: Annotated[float, typer.Option()] = 1.0,
    n: Annotated[int, typer.Option("-n", help="Completions per prompt.")] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="String that ends the text; repeat for several.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print outputs and counters as JSON.")] = False,
    no_speculation: Annotated[bool, NO_SPECULATION] = False,
    engine_flags: dict[str, Any] | None = None,
) -> None:
    """Generate text from prompts, without a server."""
    from adaverify.sampling.params import SamplingParams

    params = SamplingParams(
        n=n,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        stop=stop or [],
        ignore_eos=ignore_eos,
        max_tokens=max_tokens,
    )
    values = engine_values(model, engine_flags or {}, default_drafts=True, no_speculation=no_speculation)
    announce(values["model"])
    from adaverify import LLM

    llm = LLM(**values)
    start = time.perf_counter()
    if chat:
        outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in prompts], params)
    else:
        outputs = llm.generate(prompts, params)
    report = measure(outputs, llm.stats(), time.perf_counter() - start)
    if as_json:
        typer.echo(json.dumps({"outputs": [asdict(output) for output in outputs], "stats": report}))
    else:
        show(prompts, outputs)
        err.print(describe(report))
    _require_success(outputs)


def measure(outputs: list[RequestOutput], stats: EngineStats, seconds: float) -> dict[str, float]:
    """Speed of a run, and what its rounds made of the drafts.

    Returns
    -------
    dict of str to float
        ``tokens``, ``seconds``, ``tokens_per_second``; with drafts also ``drafted_per_round``,
        ``admitted_per_round`` and ``accepted_per_round``.
    """
    tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    report = {"tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds}
    if stats.num_draft_rounds:
        for name, counts in (("drafted", stats.drafted), ("admitted", stats.admitted), ("accepted", stats.accepted)):
            report[f"{name}_per_round"] = sum(counts) / stats.num_draft_rounds
    return report


def describe(report: dict[str, float]) -> str:
    """One line of a report."""
    line = f"{report['tokens']} tokens in {report['seconds']:.2f} s, {report['tokens_per_second']:.1f} tokens/s"
    if "admitted_per_round" in report:
        line += (
            f"; drafts per round: {report['drafted_per_round']:.2f} drafted, "
            f"{report['admitted_per_round']:.2f} admitted, {report['accepted_per_round']:.2f} accepted"
        )
    return line


def show(prompts: list[str], outputs: list[RequestOutput]) -> None:
    """Print the texts, each under its prompt if there are several."""
    several = len(outputs) > 1 or len(outputs[0].outputs) > 1
    for prompt, output in zip(prompts, outputs, strict=True):
        for completion in output.outputs:
            if several:
                err.rule(f"{prompt[:60]!r} [{completion.index}]", align="left")
            typer.echo(completion.text)


def _require_success(outputs: list[RequestOutput]) -> None:
    """Exit with code 1 if a completion failed."""
    errors = [completion.error for output in outputs for completion in output.outputs if completion.error]
    for error in errors:
        fail(RequestFailedError(error))
    if errors:
        raise typer.Exit(1)
