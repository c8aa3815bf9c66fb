"""What is asked: prompt files mixed by weight, the same questions with the same seeds for every arm."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from adaverify.errors import ConfigError
from adaverify.training.prompts import PromptSource, read_source


@dataclass(frozen=True)
class Question:
    """One request to be made.

    Attributes
    ----------
    dataset : str
        Name of the file it comes from.
    text : str
        The first user turn: later ones would depend on what an arm answered.
    seed : int
        Of the sampling.
    """

    dataset: str
    text: str
    seed: int


@dataclass(frozen=True)
class Workload:
    """One traffic: prompts of one file, or of several.

    Attributes
    ----------
    name : str
    sources : tuple of PromptSource
    digests : tuple of str
        SHA-256 of the files, in the same order.
    """

    name: str
    sources: tuple[PromptSource, ...]
    digests: tuple[str, ...]

    def questions(self, seed: int) -> Iterator[Question]:
        """Endless questions: every beginning holds the files in their weights, each shuffled, again and again."""
        streams = [_shuffled(source, seed) for source in self.sources]
        taken = [0] * len(streams)
        number = 0
        while True:
            # the file furthest behind its share is next
            i = min(range(len(streams)), key=lambda j: (taken[j] / self.sources[j].weight, j))
            taken[i] += 1
            yield Question(self.sources[i].name, next(streams[i]), seed + number)
            number += 1

    def slice(self, seed: int, first: int, count: int) -> list[Question]:
        """``count`` questions from number ``first`` on."""
        return list(islice(self.questions(seed), first, first + count))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        files = [
            {"name": source.name, "weight": source.weight, "prompts": len(source.conversations), "sha256": digest}
            for source, digest in zip(self.sources, self.digests, strict=True)
        ]
        return {"name": self.name, "datasets": files}


def read_workloads(specs: Sequence[str], apart: bool) -> tuple[Workload, ...]:
    """Read ``FILE`` or ``FILE:WEIGHT``: one workload of all files, or one a file.

    Raises
    ------
    ConfigError
        There is no file, one cannot be read, or two have the same name.
    """
    if not specs:
        raise ConfigError("there is nothing to ask: give prompts with --dataset FILE.jsonl")
    sources = [read_source(spec) for spec in specs]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        raise ConfigError("two prompt files have the same name, and could not be told apart in the results; rename one")
    digests = [_digest(spec) for spec in specs]
    if apart or len(sources) == 1:
        return tuple(Workload(one.name, (one,), (digest,)) for one, digest in zip(sources, digests, strict=True))
    return (Workload("mixed", tuple(sources), tuple(digests)),)


def _digest(spec: str) -> str:
    path = Path(spec)
    if not path.is_file():
        path = Path(spec.rpartition(":")[0])
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _shuffled(source: PromptSource, seed: int) -> Iterator[str]:
    """First turns in an order of the seed's, in another one each time round."""
    epoch = 0
    while True:
        order = list(range(len(source.conversations)))
        random.Random(f"{seed}/{source.name}/{epoch}").shuffle(order)
        yield from (source.conversations[i][0] for i in order)
        epoch += 1
