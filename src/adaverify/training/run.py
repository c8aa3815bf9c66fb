"""From a target and prompts to a drafter: answers, hidden states, training, checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adaverify.drafters.models.weights import target_ids
from adaverify.engine import loader
from adaverify.engine.batch import Segment
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.loader import LoadedModel
from adaverify.engine.runner import ModelRunner
from adaverify.engine.taps import HiddenTaps
from adaverify.errors import ConfigError
from adaverify.training.answers import Answer
from adaverify.training.batches import draft_vocabulary, split, token_counts
from adaverify.training.checkpoint import RECORD, save_drafter, stages_up_to, start_from, weights_of
from adaverify.training.hidden import HiddenCache, Sample
from adaverify.training.recipes import RECIPES, DraftSize, TargetInfo
from adaverify.training.trainer import Trainer, TrainingProgress, TrainingSettings

HELD_OUT_SHARE, MAX_HELD_OUT = 0.03, 64


@dataclass(frozen=True)
class DraftPlan:
    """What to train.

    Attributes
    ----------
    method : str
    size : DraftSize
    settings : TrainingSettings
    taps : tuple of int, optional
        Target layers to read; EAGLE-3's choice if None.
    max_answer_tokens : int, optional
        Train on the first answers with this many tokens in all.
    init_from : Path, optional
        Checkpoint whose tensors of the same name and shape are the start.
    """

    method: str
    size: DraftSize = field(default_factory=DraftSize)
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    taps: tuple[int, ...] | None = None
    max_answer_tokens: int | None = None
    init_from: Path | None = None


def train_drafter(
    plan: DraftPlan,
    target: LoadedModel,
    tokenizer: PreTrainedTokenizerBase,
    target_name: str,
    answers: Sequence[Answer],
    asked: Sequence[Answer],
    cache_dir: Path,
    out: Path,
    on_states: Callable[[int, int], None] = lambda done, total: None,
    on_progress: Callable[[TrainingProgress, float], None] = lambda progress, share: None,
) -> dict[str, Any]:
    """Train and save a drafter; returns the record of the run, which is saved beside it.

    Parameters
    ----------
    target_name : str
        What the checkpoint calls its target.
    answers : sequence of Answer
        The target's own texts, in the order of the cache of hidden states.
    asked : sequence of Answer
        Those of them to train on.
    cache_dir : Path
        For hidden states, which runs with the same target and taps share.
    out : Path
        Folder of the checkpoint.

    Raises
    ------
    ConfigError
        The method is unknown or there is too little text.
    """
    if plan.method not in RECIPES:
        raise ConfigError(f"method {plan.method!r} cannot be trained; use one of {', '.join(RECIPES)}")
    info = TargetInfo(target.model, target.name, target_name, mask_token(tokenizer, answers))
    taps = plan.taps or info.default_taps()
    check_head(target, info)
    chosen = {answer.id for answer in first_tokens(asked, plan.max_answer_tokens)}
    last = max((i for i, answer in enumerate(answers) if answer.id in chosen), default=-1)
    cache = HiddenCache(cache_dir / f"hidden-{'-'.join(map(str, taps))}", target, taps)
    cache.fill(answers[: last + 1], on_states)
    samples = [sample for sample in cache.samples(last + 1) if sample.id in chosen]
    usable = [s for s in samples if s.prompt_length + 1 < plan.settings.tokens_per_pass]
    training, held_out = split(usable, HELD_OUT_SHARE)
    held_out = held_out[:MAX_HELD_OUT]
    if not training or not held_out:
        raise ConfigError(
            f"{len(chosen)} answers are too few to train on and to hold some out; give more prompts or tokens"
        )
    counts = token_counts(training, int(info.embedding.shape[0]))
    vocabulary = choose_vocabulary(plan, counts)
    coverage = float(counts[vocabulary].sum() / counts.sum().clamp(min=1))
    torch.manual_seed(plan.settings.seed)
    recipe = RECIPES[plan.method](info, plan.size, vocabulary, taps)
    recipe.prepare(training)
    if plan.init_from:
        start_from(recipe, plan.init_from)
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(recipe, training, held_out, plan.settings, out / "training.pt")
    progress = trainer.run(on_progress=on_progress)
    save_drafter(recipe, out, recipe.extra_config(held_out, plan.settings.tokens_per_pass))
    record = {
        "method": plan.method,
        "target": target_name,
        "taps": list(taps),
        "size": asdict(recipe.size),
        "settings": asdict(plan.settings),
        "init_from": plan.init_from.name if plan.init_from else None,
        "earlier_stages": stages_up_to(plan.init_from) if plan.init_from else [],
        "data": describe_data(training, held_out) | {"draft_vocabulary_coverage": round(coverage, 5)},
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "curve": progress.curve,
    }
    (out / RECORD).write_text(json.dumps(record, indent=1) + "\n")
    trainer.state_path.unlink(missing_ok=True)
    return record


@torch.inference_mode()
def check_head(target: LoadedModel, info: TargetInfo) -> None:
    """Training rebuilds the target's logits from its last hidden state: make sure that they are its logits.

    Raises
    ------
    ConfigError
        The target does something else to them, such as soft-capping.
    """
    text = list(range(1, 9))
    kv = PagedKV(target.shapes, 3, len(text), target.model.dtype, target.model.device)
    taps = HiddenTaps(target.model, [int(info.config.num_hidden_layers)])
    output = ModelRunner(target.model, kv, 1, taps).forward([Segment(text, 0, [1], len(text))])
    taps.close()
    assert output.hidden is not None
    logits = F.linear(info.final_norm(output.hidden), info.head).float()
    error = float((logits - output.logits.float()).abs().max() / output.logits.float().std())
    if not error < 0.05:
        raise ConfigError(
            f"a drafter cannot be trained for {type(target.model).__name__}: its logits are not its head over its "
            f"normed last state (relative error {error:.2g}; soft-capping or scaling?)"
        )


def choose_vocabulary(plan: DraftPlan, counts: Tensor) -> Tensor:
    """Target ids that can be drafted, ascending [Vd]: those of the checkpoint to start from, else the commonest.

    What is learned by draft token, such as DSpark's Markov head, makes sense with the vocabulary it was learned for.

    Parameters
    ----------
    counts : Tensor [V], int64
        How often the target wrote each token.
    """
    size = plan.size.draft_vocab_size
    offsets = load_file(weights_of(plan.init_from)).get("d2t") if plan.init_from else None
    kept = None
    if plan.init_from and offsets is not None and len(offsets) == size:
        kept = target_ids(offsets, size, len(counts), plan.init_from)
    return draft_vocabulary(counts, size) if kept is None else kept


def mask_token(tokenizer: PreTrainedTokenizerBase, answers: Sequence[Answer]) -> int:
    """A token that stands for a row still to be drafted: one that the target never wrote."""
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    written = {token for answer in answers for token in (*answer.prompt_token_ids, *answer.output_token_ids)}
    added = sorted(tokenizer.added_tokens_decoder)
    unused = [token for token in added if token not in written] or [
        token for token in range(len(tokenizer)) if token not in written
    ]
    return unused[0] if unused else 0


def first_tokens(answers: Sequence[Answer], max_tokens: int | None) -> list[Answer]:
    """The first answers, up to ``max_tokens`` answer tokens."""
    chosen, total = [], 0
    for answer in answers:
        if max_tokens is not None and total >= max_tokens:
            break
        chosen.append(answer)
        total += len(answer.output_token_ids)
    return chosen


def describe_data(training: Sequence[Sample], held_out: Sequence[Sample]) -> dict[str, Any]:
    """Texts and tokens by source."""
    sources: dict[str, dict[str, int]] = {}
    for sample in training:
        counts = sources.setdefault(sample.id.split("/")[0], {"answers": 0, "answer_tokens": 0})
        counts["answers"] += 1
        counts["answer_tokens"] += int(sample.loss_mask.sum())
    return {
        "sources": sources,
        "answer_tokens": sum(counts["answer_tokens"] for counts in sources.values()),
        "tokens": sum(len(sample.token_ids) for sample in training),
        "held_out_answers": len(held_out),
    }


def load_target(name: str, dtype: str, device: str) -> LoadedModel:
    """The target, through the paged attention that serving uses."""
    return loader.load_model(name, dtype, loader.resolve_device(device), "target")
