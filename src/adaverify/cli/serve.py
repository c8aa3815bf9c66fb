"""``adaverify serve``."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from adaverify.cli.console import announce, err
from adaverify.cli.lab import needs_lab
from adaverify.cli.options import NO_SPECULATION, engine_values, with_engine_flags
from adaverify.config import EngineConfig, SpeculativeConfig
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.engine.async_engine import AsyncEngine

_SERVE_PACKAGES = {"fastapi", "starlette", "uvicorn", "prometheus_client"}


@with_engine_flags
def serve(
    target: Annotated[
        str | None, typer.Argument(help="Folder or hub name of the target; SmolLM2-135M-Instruct if omitted.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name that requests use; repeat for several. The target's by default.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ADAVERIFY_API_KEY", help="Bearer token that /v1 requests must carry.")
    ] = None,
    shutdown_grace: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests get to finish after SIGTERM.")
    ] = 30.0,
    record: Annotated[
        Path | None, typer.Option(help="Record every draft and its fate in this folder, for adaverify evaluate.")
    ] = None,
    no_speculation: Annotated[bool, NO_SPECULATION] = False,
    engine_flags: dict[str, Any] | None = None,
) -> None:
    """Serve a model with the OpenAI API."""
    config = EngineConfig.build(
        **engine_values(target, engine_flags or {}, default_drafts=True, no_speculation=no_speculation)
    )
    recorder_class = _load_recorder() if record is not None else None
    names = served_model_name or [target or Path(config.model).name]
    run = _load_server()
    listener = run.bind(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"

    from adaverify.engine.async_engine import AsyncEngine
    from adaverify.server.app import create_app

    _log_progress()
    announce(config.model)
    engine = AsyncEngine.from_config(config)
    recorder = recorder_class(engine.engine, record) if recorder_class is not None else None
    app = create_app(engine, names, api_key or None)
    err.print(summary(engine, names))
    # Wrapped by the terminal, not by us: the command is there to be copied.
    invite = partial(err.print, invitation(url, names[0], bool(api_key)), soft_wrap=True)
    try:
        run.run_server(app, listener, shutdown_grace, on_ready=invite)
    finally:
        if recorder is not None:
            recorder.close()


def _log_progress() -> None:
    """Show adaverify's own log lines, and nobody else's, with their time."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    log = logging.getLogger("adaverify")
    log.setLevel(logging.INFO)
    log.addHandler(handler)


def _load_server() -> Any:
    """Import the server, or say what to install."""
    try:
        from adaverify.server import runner
    except ModuleNotFoundError as error:
        if error.name not in _SERVE_PACKAGES:
            raise
        raise ConfigError(f"adaverify serve needs the package {error.name}: pip install 'adaverify[serve]'") from error
    return runner


def _load_recorder() -> Any:
    with needs_lab("serve --record"):
        from adaverify.lab.trace.recorder import Recorder
    return Recorder


def summary(engine: AsyncEngine, names: list[str]) -> Panel:
    """Show what is served, in a panel."""
    config = engine.config
    blocks = "auto" if config.num_kv_blocks is None else f"{config.num_kv_blocks} of {config.block_size} tokens"
    rows = {
        "model": f"{', '.join(names)} (context {engine.max_model_len} tokens)",
        "dtype": config.dtype,
        "device": config.device,
        "KV blocks": f"{blocks}, prefix caching {'on' if config.enable_prefix_caching else 'off'}",
        "batch": f"{config.max_num_seqs} requests, {config.max_num_batched_tokens} tokens a step",
        "speculation": describe_speculation(config.speculative_config),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(value))
    return Panel(table, title="adaverify", title_align="left", expand=False)


def describe_speculation(config: SpeculativeConfig | None) -> str:
    """One line on how drafts are made and verified."""
    if config is None:
        return "off"
    adaptive = "adaptive verification" if config.enable_adaptive_verification else "every draft verified"
    return (
        f"{config.method} {Path(config.model).name}, K={config.num_speculative_tokens}, "
        f"{config.draft_sample_method} drafts, {config.rejection_sample_method} verification, {adaptive}"
    )


def invitation(url: str, model: str, needs_key: bool) -> Text:
    """Where the server is, and a request to try."""
    key = " -H 'Authorization: Bearer '$ADAVERIFY_API_KEY" if needs_key else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return Text.assemble(
        "Ready at ",
        (f"{url}/v1", "bold green"),
        f"\n  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'",
    )
