"""The flags that commands share: one for every field of :class:`~adaverify.config.EngineConfig`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from adaverify.cli.console import err
from adaverify.config import EngineConfig
from adaverify.errors import ConfigError

NO_SPECULATION = typer.Option("--no-speculation", help="Without the default model's drafter.", rich_help_panel="Engine")

_ENGINE_FLAGS: dict[str, tuple[Any, str]] = {
    "tokenizer": (str | None, "Folder or hub name of the tokenizer; the target's own by default."),
    "dtype": (str, "auto (the checkpoint's, if the processor has it), bfloat16, float16 or float32."),
    "device": (str, "auto, cpu or cuda."),
    "seed": (int, "Seeds the requests that bring no seed of their own."),
    "max_model_len": (int | None, "Longest prompt plus output in tokens; the model's limit by default."),
    "max_num_seqs": (int, "Most requests in one step."),
    "max_num_batched_tokens": (int, "Most tokens in one step, prefill and drafts included."),
    "max_waiting": (int, "Most requests waiting; further ones get 503."),
    "block_size": (int, "Tokens per KV block."),
    "kv_cache_memory_bytes": (int | None, "Memory of the KV pools; a quarter of the free memory by default."),
    "num_kv_blocks": (int | None, "Exact number of KV blocks; overrides --kv-cache-memory-bytes."),
    "enable_prefix_caching": (bool, "Reuse the KV blocks of prompts seen before."),
    "speculative_config": (
        str | None,
        'JSON, e.g. {"method": "draft_model", "model": "DRAFTER", "num_speculative_tokens": 5, '
        '"enable_adaptive_verification": true}.',
    ),
}
_VLLM_ALIASES = {"num_kv_blocks": "--num-gpu-blocks-override"}


def with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every field of the engine's configuration but the model.

    Parameters
    ----------
    command : callable
        Takes ``engine_flags``, a dict of field name to value, besides its own parameters.

    Returns
    -------
    callable
        The same command with one parameter per flag in place of ``engine_flags``.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "engine_flags"]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + [
        _flag(name, kind, text) for name, (kind, text) in _ENGINE_FLAGS.items()
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        engine_flags = {name: values.pop(name) for name in _ENGINE_FLAGS}
        command(**values, engine_flags=engine_flags)

    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _flag(name: str, kind: Any, text: str) -> inspect.Parameter:
    option = f"--{name.replace('_', '-')}"
    if kind is bool:
        option += f"/--no-{name.replace('_', '-')}"
    names = [option, *([_VLLM_ALIASES[name]] if name in _VLLM_ALIASES else [])]
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=EngineConfig.model_fields[name].default,
        annotation=Annotated[kind, typer.Option(*names, help=text, rich_help_panel="Engine")],
    )


def engine_values(
    target: str | None, engine_flags: dict[str, Any], default_drafts: bool = False, no_speculation: bool = False
) -> dict[str, Any]:
    """Fields of the engine's configuration: the flags that were given, and the target or the default model.

    The flags are checked first, so that a slip in them does not cost a download.

    Parameters
    ----------
    target : str, optional
    engine_flags : dict
    default_drafts : bool
        Without a target, take the default model's drafter too, if there is one and no other is configured.
    no_speculation : bool
        Take none.

    Raises
    ------
    ConfigError
        A flag is wrong, or no target is named and the default model cannot be had.
    """
    EngineConfig.build(model=target or "default", **engine_flags)
    speculative = engine_flags.get("speculative_config")
    if no_speculation and speculative is not None:
        raise ConfigError("--no-speculation and --speculative-config contradict each other; leave one of them out")
    given = {name: value for name, value in engine_flags.items() if value != EngineConfig.model_fields[name].default}
    if target is None:
        from adaverify.engine.default_drafter import default_drafter
        from adaverify.engine.default_model import default_model_path

        if default_drafts and not no_speculation and speculative is None:
            drafter = default_drafter(lambda why: err.print(f"No drafts: {why}", soft_wrap=True, markup=False))
            given |= {"speculative_config": drafter} if drafter else {}
        target = str(default_model_path())
    return {"model": target, **given}
