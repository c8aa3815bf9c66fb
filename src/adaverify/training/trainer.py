"""The training loop: a cosine schedule, in bfloat16 where it pays, resumable."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from adaverify.errors import ConfigError
from adaverify.training.batches import groups, shuffled_groups
from adaverify.training.hidden import Sample
from adaverify.training.optimizer import DraftOptimizer
from adaverify.training.recipes import Recipe


@dataclass(frozen=True)
class TrainingSettings:
    """How long and how hard to train.

    Attributes
    ----------
    epochs : float
        Passes over the training texts.
    max_minutes : float, optional
        End earlier, with the schedule shortened to fit.
    learning_rate, matrix_learning_rate : float
        At the peak: AdamW's, and Muon's for weight matrices.
    tokens_per_batch, tokens_per_pass : int
        A step's gradient is that of a batch, gathered over passes. A text longer than a pass is cut.
    warmup : float
        Share of the run in which the learning rate rises.
    weight_decay : float
    clip : float
        Largest norm of the gradient.
    seed : int
    """

    epochs: float = 3.0
    max_minutes: float | None = None
    learning_rate: float = 1e-3
    matrix_learning_rate: float = 0.02
    tokens_per_batch: int = 1024
    tokens_per_pass: int = 1024
    warmup: float = 0.03
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0


@dataclass
class TrainingProgress:
    """Where a run is; the evaluations are the learning curve.

    Attributes
    ----------
    step : int
    tokens : int
        Tokens seen, prompts included.
    seconds : float
        Time spent training, without evaluations.
    curve : list of dict
        ``tokens``, ``seconds``, ``loss`` and ``acceptance`` by position on the held-out texts.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Trains one recipe's model.

    Parameters
    ----------
    recipe : Recipe
    training, held_out : sequence of Sample
    settings : TrainingSettings
    state_path : Path
        Where the state of a run is kept until it has ended.
    """

    def __init__(
        self,
        recipe: Recipe,
        training: Sequence[Sample],
        held_out: Sequence[Sample],
        settings: TrainingSettings,
        state_path: Path,
    ) -> None:
        self.recipe = recipe
        self.training = training
        self.held_out = held_out
        self.settings = settings
        self.state_path = state_path
        self.device = recipe.target.model.device
        self.progress = TrainingProgress()
        self.parameters = [p for p in recipe.model.parameters() if p.requires_grad]
        self.optimizer = DraftOptimizer(
            self.parameters,
            settings.learning_rate,
            settings.matrix_learning_rate,
            settings.weight_decay,
            table_size=int(recipe.target.embedding.shape[0]),
        )
        self.steps_per_epoch = len(list(shuffled_groups(training, settings.tokens_per_batch, torch.Generator())))
        self.num_steps = max(1, math.ceil(settings.epochs * self.steps_per_epoch))

    @property
    def fingerprint(self) -> str:
        """What must not change between the parts of a run."""
        size = asdict(self.recipe.size)
        return f"{self.recipe.method}, {size}, {len(self.training)} texts, {int(self.recipe.vocabulary.sum())}"

    def run(
        self, num_evaluations: int = 8, on_progress: Callable[[TrainingProgress, float], None] = lambda p, share: None
    ) -> TrainingProgress:
        """Train to the end; ``on_progress`` is told the progress and the share done after every step."""
        self._resume()
        torch.manual_seed(self.settings.seed + self.progress.step)
        next_evaluation = (len(self.progress.curve) + 1) / num_evaluations
        for batch in self._batches():
            share = self._share_done()
            if share >= 1.0:
                break
            start = time.perf_counter()
            self._step(batch, share)
            self.progress.seconds += time.perf_counter() - start
            self.progress.step += 1
            self.progress.tokens += sum(len(sample.token_ids) for sample in batch)
            on_progress(self.progress, share)
            if share >= next_evaluation:
                next_evaluation += 1 / num_evaluations
                self.evaluate()
                self._keep()
        if not self.progress.curve or self.progress.curve[-1]["step"] != self.progress.step:
            self.evaluate()
        return self.progress

    def _batches(self) -> Iterator[list[Sample]]:
        generator = torch.Generator()
        number = self.progress.step // self.steps_per_epoch
        skip = self.progress.step % self.steps_per_epoch
        while True:
            generator.manual_seed(self.settings.seed * 1_000_003 + number)
            for i, batch in enumerate(shuffled_groups(self.training, self.settings.tokens_per_batch, generator)):
                if i >= skip:
                    yield batch
            number, skip = number + 1, 0

    def _share_done(self) -> float:
        share = self.progress.step / self.num_steps
        if self.settings.max_minutes is not None:
            share = max(share, self.progress.seconds / (60 * self.settings.max_minutes))
        return share

    def _step(self, batch: list[Sample], share: float) -> None:
        warm = min(1.0, share / self.settings.warmup) if self.settings.warmup else 1.0
        factor = max(0.02, warm) * 0.5 * (1 + math.cos(math.pi * share))
        self.recipe.model.train()
        self.recipe.begin_step(share)
        self.optimizer.zero_grad()
        parts = groups(batch, self.settings.tokens_per_pass)
        for part in parts:
            with torch.autocast(self.device.type, torch.bfloat16):
                loss, _ = self.recipe.loss(part, self.settings.tokens_per_pass)
            (loss / len(parts)).backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        # a batch whose gradient is not finite teaches nothing
        if torch.isfinite(norm):
            self.optimizer.step(factor)

    @torch.no_grad()
    def evaluate(self) -> dict[str, Any]:
        """Loss and acceptance by position on the held-out texts; added to the curve."""
        self.recipe.model.eval()
        sums: dict[str, float] = {}
        losses = []
        with torch.random.fork_rng():
            # the anchors of a parallel drafter's blocks are drawn: the same ones every time
            torch.manual_seed(1)
            for part in groups(sorted(self.held_out, key=lambda s: len(s.token_ids)), self.settings.tokens_per_pass):
                with torch.autocast(self.device.type, torch.bfloat16):
                    loss, metrics = self.recipe.loss(part, self.settings.tokens_per_pass)
                losses.append(float(loss))
                for name, value in metrics.items():
                    sums[name] = sums.get(name, 0.0) + float(value)
        point = {
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": round(self.progress.seconds, 1),
            "loss": round(sum(losses) / len(losses), 4),
            "acceptance": [round(share, 4) for share in self.recipe.acceptance(sums)],
        }
        self.progress.curve.append(point)
        return point

    def _keep(self) -> None:
        state = {
            "model": {
                k: v for k, v in self.recipe.model.state_dict().items() if "embed" not in k and "head.w" not in k
            },
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
            "run": self.fingerprint,
        }
        partial = self.state_path.with_suffix(".partial")
        torch.save(state, partial)
        partial.rename(self.state_path)

    def _resume(self) -> None:
        if self.state_path.exists():
            state = torch.load(self.state_path, map_location=self.device, weights_only=True)
            if state["run"] != self.fingerprint:
                raise ConfigError(
                    f"{self.state_path} is the state of another run ({state['run']}; now {self.fingerprint}); "
                    "delete it, or name another --out"
                )
            self.recipe.model.load_state_dict(state["model"], strict=False)
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = TrainingProgress(**state["progress"])
