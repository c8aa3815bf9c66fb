from __future__ import annotations

import pytest
import torch

from adaverify import SamplingParams
from adaverify.sampling.laws import DraftLaws
from adaverify.sampling.overlap import draft_overlaps
from adaverify.sampling.sampler import SampleRequest

V = 7


def request(drafts: list[int], q_start: int | None, **params) -> SampleRequest:
    return SampleRequest(
        params=SamplingParams(**({"temperature": 0.8} | params)),
        seed=0,
        prompt_token_ids=[1],
        output_token_ids=[2],
        draft_token_ids=drafts,
        q_start=q_start,
        eos_token_ids=frozenset(),
    )


@pytest.mark.parametrize("columns", [None, torch.tensor([0, 2, 3, 6]), torch.tensor([[6, 1, 0], [3, 4, 5], [0, 2, 4]])])
def test_overlap_is_the_mass_that_p_and_q_share(columns):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, V, generator=generator)
    width = V if columns is None else columns.shape[-1]
    q = torch.rand(3, width, generator=generator)
    q /= q.sum(-1, keepdim=True)
    requests = [request([3], 1), request([], None), request([4, 5], 0)]
    found = draft_overlaps(logits, requests, DraftLaws(q, columns), depth=4)
    wide = torch.zeros(3, V)
    for row in range(3):
        wide[row, torch.arange(V) if columns is None else columns.expand(3, -1)[row]] = q[row]
    p = (logits / 0.8).softmax(-1)
    expected = torch.full((3, 4), torch.nan)
    for (r, i), row_of_p, row_of_q in (((0, 0), 0, 1), ((2, 0), 3, 0), ((2, 1), 4, 1)):
        expected[r, i] = torch.minimum(p[row_of_p], wide[row_of_q]).sum()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_one_hot_draft_overlaps_by_its_own_probability():
    logits = torch.randn(2, V)
    found = draft_overlaps(logits, [request([3], None, temperature=1.0)], None, depth=1)
    torch.testing.assert_close(found, logits[:1].softmax(-1)[:, 3:4])


def test_truncation_counts_as_in_verification():
    logits = torch.tensor([[4.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]] * 2)
    q = torch.full((1, V), 1 / V)
    kept = draft_overlaps(logits, [request([0], 0, temperature=1.0, top_k=2)], DraftLaws(q), depth=1)
    torch.testing.assert_close(kept, torch.tensor([[2 / V]]))


def test_greedy_requests_and_those_with_rules_have_none():
    logits = torch.randn(4, V)
    requests = [request([3], 0, temperature=0.0), request([3], 0, presence_penalty=0.5)]
    assert draft_overlaps(logits, requests, DraftLaws(torch.full((1, V), 1 / V)), depth=1).isnan().all()
