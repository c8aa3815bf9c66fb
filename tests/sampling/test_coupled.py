from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from adaverify.sampling import (
    SampleRequest,
    SamplingParams,
    SamplingTensors,
    coupled,
    filtered_probabilities,
    sample,
)
from adaverify.sampling.coupled import likeliest_drafts, race_drafts
from adaverify.sampling.laws import DraftLaws
from adaverify.sampling.noise import position_keys, times
from adaverify.sampling.overlap import coupled_overlap, draft_overlaps
from adaverify.sampling.race import MAX_LEAD

VOCAB = 40
NAN = float("nan")
GREEDY = SamplingParams(temperature=0.0)
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(top_k=6, logprobs=2),
    SamplingParams(min_p=0.05, repetition_penalty=1.4, presence_penalty=0.3),
    SamplingParams(logit_bias={3: 2.0, 9: -4.0}, min_tokens=4, allowed_token_ids=list(range(25))),
    SamplingParams(bad_words_token_ids=[[1], [2, 3]], frequency_penalty=0.8, logprobs=0),
    GREEDY,
]


def rows(count: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def tensors(*params: SamplingParams) -> SamplingTensors:
    return SamplingTensors.from_params(params, range(len(params)), "cpu")


def one_by_one(params: SamplingParams, logits: torch.Tensor, seed: int) -> list[int]:
    text: list[int] = []
    for row in logits:
        request = SampleRequest(params, seed, [1, 2], list(text), eos_token_ids=frozenset({3}))
        text += sample(row.clone().unsqueeze(0), [request], coupled=True)[0].token_ids
    return text


@pytest.mark.parametrize("params", PARAMS)
def test_the_text_is_that_of_no_drafts_whatever_is_drafted(params):
    logits = rows(5)
    for seed in range(20):
        plain = one_by_one(params, logits, seed)
        for wrong in range(5):
            drafts = [(token + (i == wrong)) % VOCAB for i, token in enumerate(plain[:4])]
            request = SampleRequest(params, seed, [1, 2], [], drafts, eos_token_ids=frozenset({3}))
            result = sample(logits.clone(), [request], coupled=True)[0]
            assert result.token_ids == plain[: wrong + 1]
            assert result.num_accepted == wrong
            assert (result.logprobs is None) == (params.logprobs is None)


def test_the_token_is_the_winner_over_the_processed_law():
    logits = rows(400)
    params = SamplingParams(temperature=0.7, top_p=0.9, logit_bias={4: 2.0})
    requests = [SampleRequest(params, seed, [1], [2, 5]) for seed in range(400)]
    tokens = [result.token_ids[0] for result in sample(logits.clone(), requests, coupled=True)]
    biased = logits.clone()
    biased[:, 4] += 2.0
    each = tensors(*[params] * 400)
    p = filtered_probabilities(biased, each.temperature, each.top_k, each.top_p, each.min_p)
    keys = position_keys(torch.arange(400), torch.full((400, 1), 3))
    assert tokens == (p / times(keys, torch.arange(VOCAB))).argmax(-1).tolist()


def test_results_do_not_depend_on_the_rest_of_the_batch():
    logits = rows(17)
    requests = [SampleRequest(p, 10 + i, [1, 2], [7], [4, 5][: i % 3]) for i, p in enumerate([*PARAMS, *PARAMS[:4]])]
    logits = rows(sum(request.num_rows for request in requests))
    together = sample(logits.clone(), requests, coupled=True)
    parts = logits.split([request.num_rows for request in requests])
    for request, part, expected in zip(requests, parts, together, strict=True):
        assert sample(part.clone(), [request], coupled=True) == [expected]


def test_faulty_rows_fail_as_in_standard_verification():
    logits = rows(7)
    logits[2, 5] = NAN
    logits[5] = NAN
    requests = [
        SampleRequest(SamplingParams(), 1, [1], [], [3]),
        SampleRequest(SamplingParams(), 2, [1], [], []),
        SampleRequest(SamplingParams(allowed_token_ids=[2], bad_words_token_ids=[[2]]), 3, [1], [], []),
        SampleRequest(GREEDY, 4, [1], [], []),
        SampleRequest(SamplingParams(), 5, [1], [], [9]),
    ]
    errors = [result.error for result in sample(logits.clone(), requests, coupled=True)]
    assert errors == [result.error for result in sample(logits.clone(), requests)]
    assert [error is None for error in errors] == [True, False, False, True, False]


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_draft_raced_with_the_targets_law_is_always_accepted(top_p, monkeypatch):
    """Drafter and target have the same noise; the laws of a reduced vocabulary or of candidates race with it, too."""
    monkeypatch.setattr(coupled, "SHARPNESS", 1.0)
    logits = rows(300, seed=3)
    params = SamplingParams(top_p=top_p)
    each = tensors(*[params] * 300)
    keys = position_keys(each.seeds, torch.full((300, 1), 2)).squeeze(-1)
    drafts = race_drafts(logits, each, keys, None)
    requests = [SampleRequest(params, seed, [1, 2], [], [token]) for seed, token in enumerate(drafts.column.tolist())]
    results = sample(logits.repeat_interleave(2, 0), requests, coupled=True)
    assert all(result.num_accepted == 1 for result in results)

    columns = torch.arange(0, VOCAB, 3)
    some = logits[:, columns]
    narrow = torch.full_like(logits, -torch.inf).index_copy(1, columns, some)
    expected = race_drafts(narrow, each, keys, None)
    reduced = race_drafts(some, each, keys, columns)
    order = torch.stack([torch.randperm(len(columns)) for _ in range(300)])
    own = race_drafts(some.gather(1, order), each, keys, columns[order])
    assert torch.equal(columns[reduced.column], expected.column)
    assert torch.equal(columns[order].gather(1, own.column[:, None])[:, 0], expected.column)
    for found in (reduced, own):
        torch.testing.assert_close(found.margins, expected.margins)
    assert reduced.q.shape == some.shape


def test_a_drafter_that_knows_less_than_the_target_guesses_better_sharpened(monkeypatch):
    """Its law is then the mean of all that the target's might be."""
    generator = torch.Generator().manual_seed(5)
    known, unknown = (3 * torch.randn(1000, n, VOCAB, generator=generator) for n in (1, 50))
    possible = (known + unknown).softmax(-1)
    p, q = possible[:, 0], possible[:, 1:].mean(dim=1)
    each = tensors(*[SamplingParams()] * 1000)
    keys = position_keys(each.seeds, torch.full((1000, 1), 2)).squeeze(-1)
    winners = (p / times(keys.unsqueeze(-1), torch.arange(VOCAB))).argmax(-1)
    met = {}
    for sharpness in (1.0, coupled.SHARPNESS):
        monkeypatch.setattr(coupled, "SHARPNESS", sharpness)
        met[sharpness] = float((race_drafts(q.log(), each, keys, None).column == winners).double().mean())
    assert met[1.5] > met[1.0] + 0.01


def test_greedy_requests_draft_the_likeliest_token_by_its_lead():
    logits = rows(3)
    each = tensors(SamplingParams(), GREEDY, SamplingParams(temperature=0.5))
    drafts = race_drafts(logits, each, torch.arange(3), None)
    best = logits.topk(2).values
    gap = best[:, 0] - best[:, 1]
    assert drafts.column[1] == logits[1].argmax()
    assert drafts.margins[1] == gap[1]
    likeliest = likeliest_drafts(logits, each)
    assert torch.equal(likeliest.column, logits.argmax(-1))
    torch.testing.assert_close(likeliest.margins, torch.stack((gap[0], gap[1], 2 * gap[2])))
    assert likeliest.q is None
    assert race_drafts(logits[1:2], tensors(GREEDY), torch.arange(1), None).q is None


def test_margins_are_limited_and_nan_where_the_law_is_not_finite():
    logits = rows(3)
    logits[0, 7] = NAN
    logits[1, 1:] = -torch.inf
    for drafts in (
        race_drafts(logits, tensors(*[SamplingParams()] * 3), torch.arange(3), None),
        likeliest_drafts(logits, tensors(*[GREEDY] * 3)),
    ):
        assert drafts.margins[0].isnan()
        assert drafts.margins[1] == MAX_LEAD
        assert 0 < drafts.margins[2] < MAX_LEAD
    assert likeliest_drafts(logits[:, :1], tensors(*[GREEDY] * 3)).margins.nan_to_num(-1).tolist() == [MAX_LEAD] * 3


def test_overlap_is_the_chance_that_both_races_have_one_winner():
    p, q = (rows(6, seed=1, vocab=9)).softmax(-1), (rows(6, seed=2, vocab=9)).softmax(-1)
    p[:3, 4:] = 0
    q[2:4, :5] = 0
    q[5] = p[5]
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    keys = position_keys(torch.arange(60000), torch.zeros(60000, 1, dtype=torch.long))
    noise = times(keys, torch.arange(9))
    met = [((a / noise).argmax(-1) == (b / noise).argmax(-1)).double().mean() for a, b in zip(p, q, strict=True)]
    torch.testing.assert_close(coupled_overlap(p, q).double(), torch.stack(met), atol=0.01, rtol=0)
    assert coupled_overlap(p, q)[2] == 0
    assert torch.equal(coupled_overlap(p, torch.where(q > 0, q, -0.0)), coupled_overlap(p, q))
    assert coupled_overlap(p, q)[5].item() == pytest.approx(1.0)
    # never above standard verification, and at least 1 - 2 TV / (1 + TV), as proved by Daliri et al.
    shared = torch.minimum(p, q).sum(-1)
    assert (coupled_overlap(p, q) <= shared + 1e-6).all()
    assert (coupled_overlap(p, q) >= shared / (2 - shared) - 1e-6).all()


def test_recorded_overlaps_are_those_of_the_coupling():
    logits, q = rows(4), rows(3, seed=8).softmax(-1)
    requests = [SampleRequest(SamplingParams(top_k=9), 1, [1], [], [3, 4], q_start=1)]
    requests += [SampleRequest(SamplingParams(), 1, [1], [])]
    found = draft_overlaps(logits, requests, DraftLaws(q), depth=3, coupled=True)
    each = tensors(*[SamplingParams(top_k=9)] * 2)
    p = filtered_probabilities(logits[:2], each.temperature, each.top_k, each.top_p, each.min_p)
    torch.testing.assert_close(found[0, :2], coupled_overlap(p, q[1:] ** coupled.SHARPNESS))
    assert found[0, 2].isnan()
    assert found[1].isnan().all()
    one_hot = [replace(requests[0], q_start=None), requests[1]]
    p_of_drafts = p.gather(-1, torch.tensor([[3], [4]]))[:, 0]
    torch.testing.assert_close(draft_overlaps(logits, one_hot, None, 2, coupled=True)[0], p_of_drafts)
