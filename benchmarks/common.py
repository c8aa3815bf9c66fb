"""What every benchmark here shares: prompts, arms measured in pairs, and results that say how they came about."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from adaverify.drafters.models import read_draft_config
from adaverify.lab.bench.provenance import PACKAGES, commit, cpu_model, installed
from adaverify.training.prompts import read_source

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
QUESTIONS = [
    "Why is the sky blue at noon and red at dusk?",
    "Write a short story about a lighthouse keeper who cannot swim.",
    "Explain to a child how a bicycle stays upright.",
    "List five uses for an old newspaper, with one sentence each.",
    "Write a Python function that returns the k largest items of a list.",
    "Which is heavier, a litre of oil or a litre of water, and how would you show it?",
    "Draft a polite letter that declines an invitation to a wedding.",
    "Compare trains and aeroplanes for a journey of six hundred kilometres.",
]


@dataclass(frozen=True)
class Spread:
    """Median and extent of repeated measurements."""

    median: float
    low: float
    high: float
    values: list[float]

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Summarise `values`, which must not be empty."""
        return cls(statistics.median(values), min(values), max(values), values)

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g}, n={len(self.values)})"


def chat_prompts(tokenizer: Any, count: int, tag: str) -> list[list[int]]:
    """`count` chat prompts of one to four questions; another `tag` shares no prompt, so no cache can help.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
        With a chat template.
    count : int
    tag : str
        Put before each question.

    Returns
    -------
    list of list of int
        Token ids, ending where the assistant's answer begins.
    """
    prompts = []
    for i in range(count):
        text = " ".join(QUESTIONS[(i + j) % len(QUESTIONS)] for j in range(1 + i % 4))
        turns = [{"role": "user", "content": f"({tag}, {i}) {text}"}]
        prompts.append(tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"])
    return prompts


def file_prompts(file: Path, limit: int, tokenizer: Any) -> list[list[int]]:
    """The first turns of the first `limit` lines of a JSONL file, through the chat template, as token ids."""
    first_turns = [turns[0] for turns in read_source(str(file)).conversations[:limit]]
    conversations = [[{"role": "user", "content": turn}] for turn in first_turns]
    return [tokenizer.apply_chat_template(one, add_generation_prompt=True)["input_ids"] for one in conversations]


def trained_drafter(folder: str, target: str, depth: int, **more: Any) -> dict[str, Any]:
    """Speculative configuration for a trained drafter: its own method, `depth` drafts or what its block holds."""
    config = read_draft_config(folder, AutoConfig.from_pretrained(target))
    depth = min(depth, config.max_draft_tokens or depth)
    return {"method": config.method, "model": folder, "num_speculative_tokens": depth, **more}


@contextmanager
def truncated_drafter(model: str, num_layers: int) -> Iterator[str]:
    """Folder with the first `num_layers` layers of `model`: a drafter as cheap as a trained one, if not as good."""
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    target.model.layers = target.model.layers[:num_layers]
    target.config.num_hidden_layers = num_layers
    with tempfile.TemporaryDirectory() as folder:
        target.save_pretrained(folder)
        AutoTokenizer.from_pretrained(model).save_pretrained(folder)
        yield folder


def seconds(body: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds of one call, and what it returned."""
    start = perf_counter()
    result = body()
    return perf_counter() - start, result


def in_pairs(arms: dict[str, Callable[[str], float]], rounds: int) -> dict[str, list[float]]:
    """Measure every arm once a round, the order turned round each time, so that drift falls on all alike.

    Parameters
    ----------
    arms : dict of str to callable
        Each takes the round's tag and returns a measurement.
    rounds : int

    Returns
    -------
    dict of str to list of float
        Measurements by arm, in the order of the rounds.
    """
    measured: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        order = list(arms) if number % 2 == 0 else list(reversed(arms))
        for name in order:
            measured[name].append(arms[name](f"round {number}"))
            print(f"round {number + 1} of {rounds}, {name}: {measured[name][-1]:.4g}", flush=True)
    return measured


def keep(name: str, figures: dict[str, Any]) -> Path:
    """Write `figures` with what is needed to get them again to ``benchmarks/results/NAME.json``."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"name": name, **provenance(), "figures": figures}, indent=2) + "\n")
    print(f"kept in {path.relative_to(ROOT)}")
    return path


def provenance() -> dict[str, Any]:
    """Command, commit, versions and machine of this run."""
    return {
        "command": " ".join(["python", "-m", _module(), *(_short(argument) for argument in sys.argv[1:])]),
        "commit": commit() or "unknown",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {"python": platform.python_version()} | {name: installed(name) for name in PACKAGES},
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "load_average": os.getloadavg()[0],
        },
    }


@contextmanager
def open_threads(count: int | None) -> Iterator[None]:
    """Run the body with `count` torch threads (None: as they are), the same for every arm."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _short(argument: str) -> str:
    """An argument without the folders of this machine."""
    return Path(argument).name if argument.startswith("/") else argument


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).name
