"""The target's hidden states over its answers, computed once and kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from adaverify.engine.batch import Segment
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.loader import LoadedModel
from adaverify.engine.runner import ModelRunner
from adaverify.engine.taps import HiddenTaps
from adaverify.errors import ConfigError
from adaverify.training.answers import Answer

_ANSWERS_PER_SHARD = 64
_TOKENS_PER_PASS = 2048
_BLOCK_SIZE = 16


@dataclass(frozen=True)
class Sample:
    """One text with the target's states: T tokens, of which the first ``prompt_length`` are the prompt.

    Attributes
    ----------
    id : str
    token_ids : Tensor [T], int64
    prompt_length : int
    taps : Tensor [T, n * H]
        Hidden states at the drafter's taps.
    last : Tensor [T, H]
        Input of the target's final norm.
    """

    id: str
    token_ids: Tensor
    prompt_length: int
    taps: Tensor
    last: Tensor

    @property
    def loss_mask(self) -> Tensor:
        """Which tokens the target wrote itself [T], bool."""
        return torch.arange(len(self.token_ids)) >= self.prompt_length


class HiddenCache:
    """Shards of hidden states in a folder; a broken run goes on at the first missing shard.

    Parameters
    ----------
    folder : Path
    target : LoadedModel
    tap_layer_ids : sequence of int
        As in :class:`adaverify.engine.taps.HiddenTaps`; the input of the final norm is kept besides.

    Raises
    ------
    ConfigError
        The folder holds states of another target or other taps.
    """

    def __init__(self, folder: Path, target: LoadedModel, tap_layer_ids: Sequence[int]) -> None:
        self.folder = folder
        self.target = target
        self.tap_layer_ids = tuple(tap_layer_ids)
        config = target.model.config.get_text_config()
        self.num_layers = int(config.num_hidden_layers)
        self.hidden_size = int(config.hidden_size)
        self._check_same_run()

    def fill(
        self, answers: Sequence[Answer], on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Compute what is missing; ``on_progress`` is told answers done and in all."""
        runner: ModelRunner | None = None
        taps = HiddenTaps(self.target.model, [*self.tap_layer_ids, self.num_layers])
        for start in range(0, len(answers), _ANSWERS_PER_SHARD):
            part = answers[start : start + _ANSWERS_PER_SHARD]
            path = self._shard(start)
            if not (path.exists() and _holds(path, part)):
                longest = max(len(a.prompt_token_ids) + len(a.output_token_ids) for a in answers)
                runner = runner or self._runner(longest, taps)
                self._write(path, part, runner)
            on_progress(start + len(part), len(answers))
        taps.close()

    def samples(self, num_samples: int) -> list[Sample]:
        """The first ``num_samples`` texts; their states are mapped from disk, not read."""
        samples: list[Sample] = []
        width = len(self.tap_layer_ids) * self.hidden_size
        for start in range(0, num_samples, _ANSWERS_PER_SHARD):
            with safe_open(self._shard(start), framework="pt") as shard:
                info = json.loads(shard.metadata()["samples"])
                token_ids, hidden = shard.get_tensor("token_ids").long(), shard.get_tensor("hidden")
            first = 0
            for row in info:
                rows = slice(first, first + row["length"])
                samples.append(
                    Sample(row["id"], token_ids[rows], row["prompt_length"], hidden[rows, :width], hidden[rows, width:])
                )
                first += row["length"]
        return samples[:num_samples]

    def _write(self, path: Path, answers: Sequence[Answer], runner: ModelRunner) -> None:
        texts = [answer.prompt_token_ids + answer.output_token_ids for answer in answers]
        states: list[Tensor] = []
        for first, last in _passes([len(text) for text in texts]):
            states.append(self._run(texts[first:last], runner))
        info = [
            {"id": answer.id, "length": len(text), "prompt_length": len(answer.prompt_token_ids)}
            for answer, text in zip(answers, texts, strict=True)
        ]
        tensors = {
            "token_ids": torch.tensor([*chain.from_iterable(texts)], dtype=torch.int32),
            "hidden": torch.cat(states),
        }
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, metadata={"samples": json.dumps(info)})
        partial.rename(path)

    def _run(self, texts: list[list[int]], runner: ModelRunner) -> Tensor:
        segments, block = [], 1
        for text in texts:
            num_blocks = -(-len(text) // _BLOCK_SIZE)
            segments.append(Segment(text, 0, range(block, block + num_blocks), 1))
            block += num_blocks
        hidden = runner.forward(segments).hidden
        assert hidden is not None
        return hidden.to("cpu", torch.bfloat16)

    def _runner(self, longest: int, taps: HiddenTaps) -> ModelRunner:
        num_blocks = 1 + 2 * -(-(_TOKENS_PER_PASS + longest) // _BLOCK_SIZE) + _TOKENS_PER_PASS
        model = self.target.model
        kv = PagedKV(self.target.shapes, num_blocks, _BLOCK_SIZE, model.dtype, model.device)
        return ModelRunner(model, kv, 1, taps)

    def _shard(self, start: int) -> Path:
        return self.folder / f"{start // _ANSWERS_PER_SHARD:05d}.safetensors"

    def _check_same_run(self) -> None:
        said = {
            "layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "taps": list(self.tap_layer_ids),
            "target": Path(self.target.name).name,
            # two models of one name are told apart by their weights
            "embedding_sum": round(float(self.target.model.get_input_embeddings().weight.double().sum()), 3),  # type: ignore[union-attr, operator]
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "cache.json"
        if path.exists() and json.loads(path.read_text()) != said:
            raise ConfigError(
                f"{self.folder} holds hidden states of another run ({path.read_text().strip()}; now "
                f"{json.dumps(said)}); delete it or name another cache"
            )
        path.write_text(json.dumps(said) + "\n")


def _passes(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring texts (first, last + 1) that go through the target together."""
    passes, first, total = [], 0, 0
    for i, length in enumerate(lengths):
        if i > first and total + length > _TOKENS_PER_PASS:
            passes.append((first, i))
            first, total = i, 0
        total += length
    return [*passes, (first, len(lengths))]


def _holds(path: Path, answers: Sequence[Answer]) -> bool:
    """Whether a shard begins with the states of just these texts."""
    texts = [answer.prompt_token_ids + answer.output_token_ids for answer in answers]
    with safe_open(path, framework="pt") as shard:
        info = json.loads(shard.metadata()["samples"])[: len(answers)]
        said = [(row["id"], row["length"], row["prompt_length"]) for row in info]
        wanted = [(a.id, len(text), len(a.prompt_token_ids)) for a, text in zip(answers, texts, strict=True)]
        if said != wanted:
            return False
        token_ids = shard.get_tensor("token_ids")[: sum(map(len, texts))]
    return token_ids.tolist() == [*chain.from_iterable(texts)]
