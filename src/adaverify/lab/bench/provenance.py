"""Where figures come from: command, commit, versions and machine."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[4]
PACKAGES = ("adaverify", "torch", "transformers")
# An absolute folder, but no part of a URL, nor an endpoint.
_FOLDER = re.compile(r"""(?<![\w.:/~-])/(?!v1/)(?:[^/\s"',=]+/)+""")


def provenance() -> dict[str, Any]:
    """Command, commit, versions and machine of this run, without the folders of the machine."""
    return {
        "command": shlex.join(["adaverify", *(without_folders(argument) for argument in sys.argv[1:])]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "versions": {"python": platform.python_version()} | {name: installed(name) for name in PACKAGES},
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "gpus": gpus(),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        },
    }


def without_folders(text: str) -> str:
    """``text`` with absolute paths cut to their last part.

    Examples
    --------
    >>> without_folders('{"model": "/srv/models/drafter"}')
    '{"model": "drafter"}'
    >>> without_folders("http://127.0.0.1:8000/v1")
    'http://127.0.0.1:8000/v1'
    """
    return _FOLDER.sub("", text)


def commit() -> str | None:
    """Commit of the source tree that this package runs from, and whether it was changed; None outside of git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def installed(name: str) -> str | None:
    """Version of a package, None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def gpus() -> list[str]:
    """Names of NVIDIA's GPUs; asked of the driver, since torch takes seconds to load."""
    ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    except (OSError, subprocess.CalledProcessError):
        return []


def cpu_model() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
