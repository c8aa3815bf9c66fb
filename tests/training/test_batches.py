from __future__ import annotations

import torch

from adaverify.training.batches import (
    draft_vocabulary,
    groups,
    pack_samples,
    pad_samples,
    shuffled_groups,
    split,
    token_counts,
)
from adaverify.training.hidden import Sample

CPU = torch.device("cpu")


def sample(name: str, length: int, prompt_length: int = 2) -> Sample:
    tokens = torch.arange(length) % 7
    return Sample(name, tokens, prompt_length, torch.full((length, 6), float(length)), torch.randn(length, 3))


SAMPLES = [sample(f"s/{i}/0@{i % 2}", 3 + i % 11) for i in range(60)]


def test_an_epoch_has_every_text_once_and_keeps_to_the_batch_size():
    generator = torch.Generator().manual_seed(1)
    batches = list(shuffled_groups(SAMPLES, 30, generator))
    assert sorted(s.id for batch in batches for s in batch) == sorted(s.id for s in SAMPLES)
    assert all(sum(len(s.token_ids) for s in batch) <= 30 for batch in batches)
    assert [b[0].id for b in batches] != [b[0].id for b in shuffled_groups(SAMPLES, 30, generator)]
    # texts of like length lie together
    spread = [max(len(s.token_ids) for s in b) - min(len(s.token_ids) for s in b) for b in batches]
    assert sum(spread) / len(spread) < 4


def test_a_packed_row_tells_its_texts_apart():
    batch = pack_samples([sample("a", 5), sample("b", 9)], 6, CPU)
    assert batch.num_tokens == 11
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]]
    assert batch.document_ids.tolist() == [[0] * 5 + [1] * 6]
    assert batch.loss_mask.tolist() == [[False, False, True, True, True, False, False, True, True, True, True]]
    assert batch.taps[0, 5:, 0].tolist() == [9.0] * 6


def test_padding_is_never_learned():
    batch = pad_samples([sample("a", 4), sample("b", 9)], 6, CPU)
    assert batch.token_ids.shape == (2, 6)
    assert batch.loss_mask.tolist() == [[False, False, True, True, False, False], [False, False] + [True] * 4]
    assert batch.num_tokens == 10


def test_a_text_longer_than_a_batch_has_one_of_its_own():
    assert [[s.id for s in g] for g in groups([sample("a", 40), sample("b", 3), sample("c", 3)], 10)] == [
        ["a"],
        ["b", "c"],
    ]


def test_a_conversation_falls_on_one_side_with_all_its_turns_and_answers():
    many = [
        sample(f"s/{i}{q}/{turn}@{t}", 4)
        for i in range(400)
        for q, turn in (("", 0), ("", 1), ("q", 0))
        for t in (0, 1)
    ]
    training, held_out = split(many, 0.1)
    assert len(training) + len(held_out) == len(many)
    assert 120 < len(held_out) < 360
    numbers = [{s.id.split("/")[1].rstrip("q") for s in side} for side in (training, held_out)]
    assert numbers[0].isdisjoint(numbers[1])


def test_the_draft_vocabulary_is_what_the_target_writes():
    text = Sample("a", torch.tensor([9, 9, 9, 3, 5, 5, 3, 3, 1]), 3, torch.zeros(9, 1), torch.zeros(9, 1))
    counts = token_counts([text], 12)
    assert counts.tolist() == [0, 1, 0, 3, 0, 2, 0, 0, 0, 0, 0, 0]
    assert draft_vocabulary(counts, 2).tolist() == [3, 5]
    assert draft_vocabulary(counts, 5).tolist() == [0, 1, 2, 3, 5]
