"""Loads a target or drafter, checks its attention hook, and sizes the KV pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from adaverify.config import EngineConfig
from adaverify.engine.dtype import resolve_dtype
from adaverify.engine.hook_check import hook_model
from adaverify.engine.kv_cache import LayerShape, PagedKV
from adaverify.errors import ConfigError


@dataclass(frozen=True)
class LoadedModel:
    """A model routed through the paged attention, and the key-value shape of its layers."""

    model: PreTrainedModel
    shapes: dict[int, LayerShape]
    name: str

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model was made for, if its configuration says."""
        text_config = self.model.config.get_text_config()
        return getattr(text_config, "max_position_embeddings", None)

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of a token over all layers, in bytes."""
        return PagedKV.bytes_per_token(self.shapes, self.model.dtype)

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text, from the generation configuration."""
        eos = self.model.generation_config.eos_token_id if self.model.generation_config else None
        eos = self.model.config.eos_token_id if eos is None else eos
        if eos is None:
            return frozenset()
        return frozenset([eos] if isinstance(eos, int) else eos)


def resolve_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one.

    Raises
    ------
    ConfigError
        CUDA was asked for and there is none.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise ConfigError("device 'cuda' was asked for, but torch finds no CUDA device; use --device cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def load_model(name: str, dtype: str, device: torch.device, role: str) -> LoadedModel:
    """Load a causal language model and route its attention through the paged store.

    Parameters
    ----------
    name : str
        Folder or hub name.
    dtype : str
        See :func:`~adaverify.engine.dtype.resolve_dtype`.
    role : str
        ``target`` or ``drafter``, for messages.

    Raises
    ------
    ConfigError
        The model is unknown, unreadable, or fails the check of the attention hook.
    """
    check_name(name, role)
    try:
        config = AutoConfig.from_pretrained(name)
        given = resolve_dtype(dtype, getattr(config, "dtype", None), device)
        model = AutoModelForCausalLM.from_pretrained(name, config=config, dtype=given)
    except Exception as error:
        where = "" if Path(name).exists() else " There is no folder of that name, so it was taken for a hub name."
        raise ConfigError(
            f"{role} {name!r} cannot be loaded as a causal language model ({_first_line(error)}).{where} "
            "Check the spelling, or give the path of a Hugging Face model folder"
        ) from error
    model.eval().requires_grad_(False).to(device)
    return LoadedModel(model, hook_model(model), name)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of ``name``.

    Raises
    ------
    ConfigError
        There is none.
    """
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise ConfigError(
            f"the tokenizer of {name!r} cannot be loaded ({_first_line(error)}); pass --tokenizer"
        ) from error


def max_model_len(config: EngineConfig, limits: Mapping[str, int | None]) -> int:
    """Longest prompt plus output, from the configuration and what each model, by name, can take.

    Raises
    ------
    ConfigError
        More was asked for than a model can take.
    """
    asked = config.max_model_len
    for name, limit in limits.items():
        if asked is not None and limit is not None and asked > limit:
            raise ConfigError(f"max_model_len {asked} is more than the {limit} positions of {name!r}; lower it")
    known = [limit for limit in limits.values() if limit is not None]
    return asked if asked is not None else min(known, default=2048)


def num_kv_blocks(config: EngineConfig, max_len: int, device: torch.device, bytes_per_token: int) -> int:
    """Blocks of the pool, null block included, from the memory allowed.

    Parameters
    ----------
    bytes_per_token : int
        What target and drafter together keep of a token.

    Raises
    ------
    ConfigError
        A request of ``max_len`` tokens, or a batch of ``max_num_seqs``, would not fit.
    """
    per_block = bytes_per_token * config.block_size
    wanted = config.max_num_seqs * -(-max_len // config.block_size)
    if config.num_kv_blocks is not None:
        blocks = config.num_kv_blocks
    elif config.kv_cache_memory_bytes is not None:
        blocks = config.kv_cache_memory_bytes // per_block
    else:
        blocks = min(wanted, _free_memory(device) // 4 // per_block)
    room = blocks * config.block_size
    if room < max_len and (config.max_model_len is not None or room < 2 * config.block_size):
        raise ConfigError(
            f"the KV pool of {blocks} blocks x {config.block_size} tokens holds {room} tokens, less than "
            f"max_model_len {max_len}; raise --kv-cache-memory-bytes or lower --max-model-len"
        )
    return blocks + 1


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return 4 << 30


def check_name(name: str, role: str) -> None:
    """Refuse a path that is no model folder before anything is loaded or the hub is asked for it.

    Raises
    ------
    ConfigError
        There is no such folder, or it holds no model.
    """
    path = Path(name)
    if path.is_absolute() or name.startswith((".", "~")):
        if not path.expanduser().is_dir():
            raise ConfigError(f"{role} {name!r}: no such folder")
        if not (path.expanduser() / "config.json").exists():
            raise ConfigError(f"{role} {name!r} holds no config.json: it is not a Hugging Face model folder")


def checkpoint_folder(name: str, role: str) -> Path:
    """Folder of a checkpoint that is not a language model by itself; a hub name is fetched.

    Raises
    ------
    ConfigError
        There is neither such a folder nor such a repository.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    check_name(name, role)
    try:
        return Path(snapshot_download(name))
    except Exception as error:
        raise ConfigError(
            f"{role} {name!r}: no such folder, and it cannot be fetched from the hub ({_first_line(error)}). "
            "Check the spelling, or give the path of a folder"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
