from __future__ import annotations

import math

import pytest
import torch

from adaverify.sampling import position_logprobs

PROBS = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.1, 0.4]])


def test_reports_the_chosen_token_and_the_most_likely_ones():
    first, second = position_logprobs(PROBS.log() + 7.0, [2, 3], [2, 0])
    assert first.chosen.token_id == 2
    assert first.chosen.rank == 3
    assert first.chosen.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert [(t.token_id, t.rank) for t in first.top] == [(1, 1), (3, 2)]
    assert [t.logprob for t in first.top] == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)
    assert second.chosen.rank == 1
    assert second.top == []


def test_tied_tokens_share_a_rank():
    (entry,) = position_logprobs(PROBS[1:].log(), [1], [4])
    assert entry.chosen.rank == 2
    assert [t.rank for t in entry.top] == [1, 2, 2, 4]


def test_half_precision_logits_are_normalised_in_float32():
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    entries = position_logprobs(logits, [5, 6, 7], [1, 1, 1])
    exact = torch.log_softmax(logits.double(), -1)[[0, 1, 2], [5, 6, 7]].tolist()
    assert [entry.chosen.logprob for entry in entries] == pytest.approx(exact, abs=1e-5)


def test_no_more_top_tokens_than_the_vocabulary_has():
    (entry,) = position_logprobs(PROBS[:1].log(), [0], [20])
    assert len(entry.top) == 4
