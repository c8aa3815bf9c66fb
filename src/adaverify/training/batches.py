"""Training batches: whole texts packed into rows of bounded length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from adaverify.training.hidden import Sample


@dataclass(frozen=True)
class TrainingBatch:
    """Texts packed into one row of T tokens, in the layout that speculators' models take.

    Attributes
    ----------
    token_ids, position_ids, document_ids : Tensor [1, T], int64
        Positions count from 0 in each text; documents number the texts.
    loss_mask : Tensor [1, T], bool
        Tokens that the target wrote.
    taps : Tensor [1, T, n * H]
    last : Tensor [1, T, H]
        Input of the target's final norm.
    """

    token_ids: Tensor
    position_ids: Tensor
    document_ids: Tensor
    loss_mask: Tensor
    taps: Tensor
    last: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens in the row."""
        return self.token_ids.shape[1]


@dataclass(frozen=True)
class PaddedBatch:
    """B texts of up to L tokens side by side, padded at the end.

    Attributes
    ----------
    token_ids : Tensor [B, L], int64
    loss_mask : Tensor [B, L], bool
        Tokens that the target wrote; False on padding.
    taps : Tensor [B, L, n * H]
    last : Tensor [B, L, H]
    num_tokens : int
        Tokens that are not padding.
    """

    token_ids: Tensor
    loss_mask: Tensor
    taps: Tensor
    last: Tensor
    num_tokens: int


def pad_samples(samples: Sequence[Sample], max_length: int, device: torch.device) -> PaddedBatch:
    """``samples`` side by side, each cut to ``max_length`` tokens."""

    def join(parts: list[Tensor]) -> Tensor:
        return pad_sequence([part[:max_length] for part in parts], batch_first=True).to(device)

    return PaddedBatch(
        token_ids=join([s.token_ids for s in samples]),
        loss_mask=join([s.loss_mask for s in samples]),
        taps=join([s.taps for s in samples]),
        last=join([s.last for s in samples]),
        num_tokens=sum(min(len(s.token_ids), max_length) for s in samples),
    )


def pack_samples(samples: Sequence[Sample], max_length: int, device: torch.device) -> TrainingBatch:
    """One batch of ``samples``, each cut to ``max_length`` tokens."""
    lengths = [min(len(sample.token_ids), max_length) for sample in samples]
    pairs = list(zip(samples, lengths, strict=True))

    def join(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts)[None].to(device)

    return TrainingBatch(
        token_ids=join([s.token_ids[:n] for s, n in pairs]),
        position_ids=join([torch.arange(n) for n in lengths]),
        document_ids=join([torch.full((n,), i) for i, n in enumerate(lengths)]),
        loss_mask=join([s.loss_mask[:n] for s, n in pairs]),
        taps=join([s.taps[:n] for s, n in pairs]),
        last=join([s.last[:n] for s, n in pairs]),
    )


def groups(samples: Sequence[Sample], tokens_per_batch: int) -> list[list[Sample]]:
    """Batches of neighbouring samples."""
    batches: list[list[Sample]] = []
    room = 0
    for sample in samples:
        length = min(len(sample.token_ids), tokens_per_batch)
        if length > room:
            batches.append([])
            room = tokens_per_batch
        batches[-1].append(sample)
        room -= length
    return batches


def shuffled_groups(
    samples: Sequence[Sample], tokens_per_batch: int, generator: torch.Generator
) -> Iterator[list[Sample]]:
    """All samples once, in batches of texts of like length (little padding) that come in random order."""
    jitter = 1.0 + 0.2 * torch.rand(len(samples), generator=generator)
    keys = [len(sample.token_ids) * float(noise) for sample, noise in zip(samples, jitter, strict=True)]
    alike = sorted(range(len(samples)), key=keys.__getitem__)
    batches = groups([samples[i] for i in alike], tokens_per_batch)
    for i in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[i]


def split(samples: Sequence[Sample], held_out_share: float) -> tuple[list[Sample], list[Sample]]:
    """Training and held-out samples, apart by conversation: all its turns and answers fall on one side."""
    training: list[Sample] = []
    held_out: list[Sample] = []
    for sample in samples:
        share = int.from_bytes(blake2b(conversation(sample.id).encode(), digest_size=4).digest(), "little") / 2**32
        (held_out if share < held_out_share else training).append(sample)
    return training, held_out


def conversation(sample_id: str) -> str:
    """Source and number of an id, without turn and temperature; a question of the target's own goes with its answer."""
    return "/".join(sample_id.split("/")[:2]).removesuffix("q")


def token_counts(samples: Sequence[Sample], vocab_size: int) -> Tensor:
    """How often the target wrote each token [vocab_size], int64."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for sample in samples:
        counts += torch.bincount(sample.token_ids[sample.loss_mask], minlength=vocab_size)
    return counts


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The ``size`` tokens that the target writes most, ascending, from :func:`token_counts`.

    Source: the reduced draft vocabulary of EAGLE-3 (arXiv 2503.01840).
    """
    # stable: of tokens never written, the lower ids come first
    return torch.argsort(counts, descending=True, stable=True)[:size].sort().values
