"""Training prompts: JSONL files mixed by weight, and user turns that the target writes itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaverify.errors import ConfigError


@dataclass(frozen=True)
class PromptSource:
    """A file of prompts and its share of the mixture.

    Attributes
    ----------
    name : str
        Stem of the file.
    conversations : list of list of str
        The user turns of each prompt.
    weight : int
        Prompts taken from this source for one of a source of weight 1.
    categories : list of str
        What each line calls its ``category``; empty where it names none.
    """

    name: str
    conversations: list[list[str]]
    weight: int = 1
    categories: list[str] = field(default_factory=list)


def read_source(spec: str) -> PromptSource:
    """Read ``path`` or ``path:weight``.

    A line is a JSON object with ``turns`` (user messages), ``messages`` (chat form; its user turns are taken), or
    ``prompt``.

    Raises
    ------
    ConfigError
        The file is missing or empty, a line is not of a known form, or the weight is not a positive integer.
    """
    name, colon, weight = spec.rpartition(":")
    if not (colon and weight.isdigit() and int(weight) > 0):
        name, weight = spec, "1"
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"prompts {name!r}: no such file; give a JSONL file, as path or path:weight")
    conversations, categories = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            row, turns = _turns(line, f"prompts {name!r}, line {number}")
            conversations.append(turns)
            categories.append(str(row.get("category") or ""))
    if not conversations:
        raise ConfigError(f"prompts {name!r} holds no prompt; give a JSONL file with one object a line")
    return PromptSource(path.stem, conversations, int(weight), categories)


def _turns(line: str, where: str) -> tuple[dict[str, Any], list[str]]:
    """The object in a line, and its user turns."""
    try:
        row: Any = json.loads(line)
        if "turns" in row:
            turns = list(row["turns"])
        elif "messages" in row:
            turns = [message["content"] for message in row["messages"] if message["role"] == "user"]
        else:
            turns = [row["prompt"]]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{where}: needs a JSON object with 'turns', 'messages' or 'prompt' ({type(error).__name__}: {error})"
        ) from error
    if not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise ConfigError(f"{where}: holds no user turn, or one that is not text")
    return row, turns


def mix(sources: Sequence[PromptSource]) -> Iterator[tuple[str, list[str]]]:
    """All prompts, interleaved so that every beginning of the sequence holds the sources in their weights.

    Yields
    ------
    (id, turns)
        ``id`` is the source's name and the prompt's number.
    """
    taken = [0] * len(sources)
    while True:
        open_sources = [i for i, source in enumerate(sources) if taken[i] < len(source.conversations)]
        if not open_sources:
            return
        # the source furthest behind its share is next
        i = min(open_sources, key=lambda j: (taken[j] / sources[j].weight, j))
        yield f"{sources[i].name}/{taken[i]}", sources[i].conversations[taken[i]]
        taken[i] += 1
