"""``adaverify train``."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adaverify.cli.console import announce, err
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.training.answers import Answer
    from adaverify.training.trainer import TrainingProgress

_CONCURRENCY = 64
TEMPERATURES = [0.0, 1.0]
_MODEL_PANEL, _RUN_PANEL, _DATA_PANEL = "Draft model", "Training", "Data"


def train(
    method: Annotated[str, typer.Argument(help="eagle3, mtp, dflash, dflash2 or dspark.")],
    out: Annotated[Path, typer.Option(help="Folder of the finished drafter.")],
    target: Annotated[
        str | None, typer.Option(help="Folder or hub name of the target; SmolLM2-135M-Instruct if omitted.")
    ] = None,
    target_name: Annotated[
        str | None, typer.Option(help="What the checkpoint calls its target; the hub name or folder name by default.")
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(help="JSONL of prompts, as FILE or FILE:WEIGHT; repeat to mix.", rich_help_panel=_DATA_PANEL),
    ] = None,
    self_prompts: Annotated[
        int,
        typer.Option(min=0, help="Weight of prompts that the target writes itself.", rich_help_panel=_DATA_PANEL),
    ] = 0,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of answers to train on.", rich_help_panel=_DATA_PANEL)
    ] = 400_000,
    max_tokens: Annotated[int, typer.Option(min=8, help="Longest answer.", rich_help_panel=_DATA_PANEL)] = 192,
    temperature: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Temperature of the answers; repeat. 0 and 1.", rich_help_panel=_DATA_PANEL),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder of answers and hidden states, kept.", rich_help_panel=_DATA_PANEL)
    ] = None,
    epochs: Annotated[float, typer.Option(min=0.001, rich_help_panel=_RUN_PANEL)] = 3.0,
    max_minutes: Annotated[
        float | None, typer.Option(min=0.01, help="End after this long.", rich_help_panel=_RUN_PANEL)
    ] = None,
    learning_rate: Annotated[
        float, typer.Option(min=1e-9, help="AdamW's, for norms and tables.", rich_help_panel=_RUN_PANEL)
    ] = 1e-3,
    matrix_learning_rate: Annotated[
        float, typer.Option(min=1e-9, help="Muon's, for weight matrices.", rich_help_panel=_RUN_PANEL)
    ] = 0.02,
    seed: Annotated[int, typer.Option(min=0, rich_help_panel=_RUN_PANEL)] = 0,
    init_from: Annotated[
        Path | None, typer.Option(help="Drafter whose fitting tensors are the start.", rich_help_panel=_RUN_PANEL)
    ] = None,
    measure_prompts: Annotated[
        int, typer.Option(min=0, help="Held-out prompts for the card's acceptance.", rich_help_panel=_RUN_PANEL)
    ] = 32,
    dtype: Annotated[str, typer.Option(help="Of the target.", rich_help_panel=_RUN_PANEL)] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.", rich_help_panel=_RUN_PANEL)] = "auto",
    num_layers: Annotated[int | None, typer.Option(min=1, rich_help_panel=_MODEL_PANEL)] = None,
    intermediate_size: Annotated[int | None, typer.Option(min=1, rich_help_panel=_MODEL_PANEL)] = None,
    num_attention_heads: Annotated[int | None, typer.Option(min=1, rich_help_panel=_MODEL_PANEL)] = None,
    draft_vocab_size: Annotated[int, typer.Option(min=2, rich_help_panel=_MODEL_PANEL)] = 8192,
    block_size: Annotated[
        int | None,
        typer.Option(min=2, max=17, help="Rows of a parallel drafter's block.", rich_help_panel=_MODEL_PANEL),
    ] = None,
    num_steps: Annotated[
        int, typer.Option(min=1, help="Training-time test: depth trained on own states.", rich_help_panel=_MODEL_PANEL)
    ] = 3,
    rank: Annotated[
        int, typer.Option(min=1, help="Of DSpark's Markov head, DFlash2's selector.", rich_help_panel=_MODEL_PANEL)
    ] = 32,
) -> None:
    """Train a drafter for a target on the target's own answers."""
    _require_speculators()
    from adaverify.engine import loader
    from adaverify.training.card import write_card
    from adaverify.training.checkpoint import RECORD, weights_of
    from adaverify.training.recipes import RECIPES, DraftSize
    from adaverify.training.run import DraftPlan, load_target, train_drafter
    from adaverify.training.trainer import TrainingSettings

    if init_from is not None:
        weights_of(init_from)  # a slip here must not cost the answers and states first
    if method not in RECIPES:
        raise ConfigError(f"method {method!r} cannot be trained; use one of {', '.join(RECIPES)}")
    plan = DraftPlan(
        method=method,
        size=DraftSize(
            num_layers=num_layers,
            intermediate_size=intermediate_size,
            num_attention_heads=num_attention_heads,
            draft_vocab_size=draft_vocab_size,
            block_size=block_size or RECIPES[method].default_block_size,
            num_steps=num_steps,
            rank=rank,
        ),
        settings=TrainingSettings(
            epochs=epochs,
            max_minutes=max_minutes,
            learning_rate=learning_rate,
            matrix_learning_rate=matrix_learning_rate,
            seed=seed,
        ),
        max_answer_tokens=answer_tokens,
        init_from=init_from,
    )
    path, name = _target(target, target_name)
    folder = cache or _default_cache(name)
    with _progress() as bar:
        answers, asked = _answers(
            path, prompts or [], self_prompts, answer_tokens, max_tokens, temperature, folder, dtype, device, bar
        )
        if (out / RECORD).exists():
            err.print(f"{out} holds a finished drafter; only its card is written anew")
        else:
            announce(path)
            states = bar.add_task("hidden states", total=None)
            task = bar.add_task(f"train {method}", total=1.0)

            shown = [0]

            def show(progress: TrainingProgress, share: float) -> None:
                latest = progress.curve[-1]["acceptance"] if progress.curve else []
                if len(progress.curve) > shown[0] and not err.is_terminal:
                    shown[0] = len(progress.curve)
                    err.print(f"{share:4.0%} {progress.seconds:5.0f} s  {progress.curve[-1]}", soft_wrap=True)
                seen = " ".join(f"{rate:.2f}" for rate in latest)
                bar.update(task, completed=share, description=f"train {method}  held out: {seen or '...'}")

            train_drafter(
                plan,
                load_target(path, dtype, device),
                loader.load_tokenizer(path),
                name,
                answers,
                asked,
                folder,
                out,
                on_states=lambda done, total: bar.update(states, completed=done, total=total),
                on_progress=show,
            )
    write_card(out, path, folder, _command(), measure_prompts, dtype=dtype, device=device)
    err.print(f"Drafter written to {out}; serve it with --speculative-config (see {out / 'README.md'})")


def _answers(
    path: str,
    prompts: list[str],
    self_prompts: int,
    num_tokens: int,
    max_tokens: int,
    temperatures: list[float] | None,
    folder: Path,
    dtype: str,
    device: str,
    bar: Progress,
) -> tuple[list[Answer], list[Answer]]:
    """Answers from the cache, completed by the engine: all of them, and those to train on."""
    from adaverify.config import EngineConfig
    from adaverify.engine.factory import build_engine
    from adaverify.training.answers import AnswerWriter, count_tokens, read_answers, source_names, such_answers
    from adaverify.training.prompts import read_source

    file = folder / "answers.jsonl"
    sources = [read_source(spec) for spec in prompts]
    known = read_answers(file) if file.exists() else []
    if not sources and not self_prompts:
        if known:
            return known, known
        raise ConfigError("there is nothing to train on: pass --prompts FILE.jsonl, or --self-prompts 1")
    kind = source_names(sources, self_prompts), temperatures or TEMPERATURES
    asked = such_answers(known, *kind)
    if count_tokens(asked) >= num_tokens:
        return known, asked
    announce(path)
    engine = build_engine(
        EngineConfig.build(
            model=path, dtype=dtype, device=device, max_num_seqs=_CONCURRENCY, max_waiting=10 * _CONCURRENCY
        )
    )
    task = bar.add_task("answers (tokens)", total=num_tokens)
    writer = AnswerWriter(engine, file, max_tokens, temperatures or TEMPERATURES)
    known = writer.write(sources, num_tokens, self_prompts, lambda total: bar.update(task, completed=total))
    return known, such_answers(known, *kind)


def _target(target: str | None, target_name: str | None) -> tuple[str, str]:
    """Path to load from, and what the checkpoint calls it."""
    if target is None:
        from adaverify.engine.default_model import HUB_REPO, default_model_path

        return str(default_model_path()), target_name or HUB_REPO
    return target, target_name or (Path(target).name if Path(target).is_dir() else target)


def _default_cache(name: str) -> Path:
    from adaverify.engine.default_model import cache_dir

    return cache_dir() / "training" / re.sub(r"[^\w.-]+", "--", name)


def _require_speculators() -> None:
    try:
        import speculators  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"training needs the speculators package ({error}): pip install 'adaverify[train]', or, to keep "
            "torch as it is, pip install --no-deps speculators hs-connectors and pip install datasets loguru "
            "pydantic-settings"
        ) from error


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), console=err
    )


def _command() -> str:
    """The command line as typed, without the folders of this machine."""
    return shlex.join(["adaverify", *sys.argv[1:]])
