from __future__ import annotations

import pytest
import torch
from scipy import stats

from adaverify.sampling import (
    Purpose,
    SampleRequest,
    SamplingParams,
    SamplingTensors,
    draw_drafts,
    filtered_probabilities,
    sample,
    sampler,
    uniforms,
)

VOCAB = 40
NAN = float("nan")


def rows(count, seed=0, vocab=VOCAB):
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 2


def request(drafts=(), seed=1, q_start=None, prompt=(1, 2), output=(3,), eos=(0,), **params):
    return SampleRequest(SamplingParams(**params), seed, prompt, output, drafts, q_start, frozenset(eos))


def split(logits, requests):
    return logits.split([r.num_rows for r in requests])


def mixed_batch():
    """Requests of every kind, their logits and q."""
    logits = rows(24)
    best = logits.argmax(-1).tolist()
    q = torch.softmax(rows(6, seed=5), -1)
    requests = [
        request(temperature=0.0),
        request(seed=2, drafts=[4, 5], q_start=1),
        request(temperature=0.0, drafts=best[4:6], logprobs=2),
        request(seed=3, drafts=[best[7], 7, 9], top_p=0.9, temperature=0.7),
        request(seed=4, drafts=[1], q_start=3, repetition_penalty=1.5, logprobs=1, top_k=10),
        request(temperature=0.0, drafts=best[13:15], frequency_penalty=1.0, min_tokens=4, eos=[best[13]]),
        request(seed=2**63 - 1, drafts=[best[16]] * 7, min_p=0.01, allowed_token_ids=list(range(20)), logprobs=0),
    ]
    return logits, requests, q


def test_results_do_not_depend_on_the_rest_of_the_batch():
    logits, requests, q = mixed_batch()
    together = sample(logits.clone(), requests, q)
    for alone, row, expected in zip(requests, split(logits, requests), together, strict=True):
        assert sample(row.clone(), [alone], q) == [expected]
    order = [6, 2, 0, 4, 1, 5, 3]
    shuffled = torch.cat([split(logits, requests)[r] for r in order])
    assert sample(shuffled, [requests[r] for r in order], q) == [together[r] for r in order]


def test_greedy_with_drafts_equals_decoding_one_by_one():
    """Whatever is drafted, the text is that of plain greedy decoding, rules included."""
    params = SamplingParams(temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.5, min_tokens=3)
    logits = rows(5)
    plain: list[int] = []
    for row in logits:
        one = SampleRequest(params, 0, [1, 2], list(plain), eos_token_ids=frozenset({3}))
        plain += sample(row.clone().unsqueeze(0), [one])[0].token_ids
    for wrong in range(5):
        drafts = [(token + (i == wrong)) % VOCAB for i, token in enumerate(plain[:4])]
        spec = SampleRequest(params, 0, [1, 2], [], drafts, eos_token_ids=frozenset({3}))
        result = sample(logits.clone(), [spec])[0]
        assert result.token_ids == plain[: wrong + 1]
        assert result.num_accepted == wrong


def test_greedy_requests_take_the_most_likely_token_after_the_rules():
    logits = rows(3)
    biased = request(temperature=0.0, drafts=[5], logit_bias={5: 100.0}, bad_words_token_ids=[[5, 5]])
    plain = request(temperature=0.0)
    expected = logits[1].clone()
    expected[5] = -torch.inf
    results = sample(logits.clone(), [biased, plain])
    assert results[0].token_ids == [5, expected.argmax().item()]
    assert results[1].token_ids == [logits[2].argmax().item()]


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {7: 3e38}, "temperature": 0.5},
        {"logit_bias": {7: 3e38}, "temperature": 1e-9},
        {"allowed_token_ids": [7], "temperature": 1e39},
        {"allowed_token_ids": [7], "temperature": 1e-9, "top_p": 1e-9},
    ],
)
def test_extreme_parameters_still_mean_what_they_say(params):
    result = sample(rows(3), [request(drafts=[7, 7], **params)])[0]
    assert (result.token_ids, result.num_accepted, result.error) == ([7, 7, 7], 2, None)


@pytest.mark.parametrize("drafting", ["sampled", "one-hot", "wrong q"])
def test_speculation_follows_the_target_law(drafting):
    """Chi-square over the first two tokens; the last case must be told apart."""
    count, vocab, depth = 20_000, 5, 2
    params = SamplingParams(temperature=0.8, top_p=0.95)
    target, draft = rows(depth + 1, seed=3, vocab=vocab) / 2, rows(depth, seed=4, vocab=vocab) / 2
    seeds = torch.arange(count) + 10**6
    sampling = SamplingTensors.from_params([params] * count, seeds.tolist(), "cpu")
    tokens, laws = [], []
    for i in range(depth):
        at = torch.full((count, 1), i)
        u = uniforms(seeds, Purpose.DRAFT, 3 + at, at).squeeze(-1)
        token, q = draw_drafts(draft[i].expand(count, -1), sampling, u)
        tokens.append(token)
        laws.append(q)
    q = torch.stack(laws, 1).flatten(0, 1)
    if drafting == "wrong q":
        q = q.roll(1, -1) * 0.5 + q * 0.5
    requests = [
        SampleRequest(params, seed, [1, 2], [3], drafts, None if drafting == "one-hot" else r * depth)
        for r, (seed, drafts) in enumerate(zip(seeds.tolist(), torch.stack(tokens, 1).tolist(), strict=True))
    ]
    results = sample(target.repeat(count, 1), requests, None if drafting == "one-hot" else q)

    p = filtered_probabilities(
        target, sampling.temperature[:3], sampling.top_k[:3], sampling.top_p[:3], sampling.min_p[:3]
    ).double()
    accepted = [result.num_accepted for result in results]
    assert min(accepted) == 0
    assert max(accepted) == depth
    first = torch.tensor([result.token_ids[0] for result in results]).bincount(minlength=vocab)
    second = torch.tensor([result.token_ids[1] for result in results if result.num_accepted]).bincount(minlength=vocab)
    third = torch.tensor([r.token_ids[2] for r in results if r.num_accepted == 2]).bincount(minlength=vocab)
    pvalues = []
    for counts, law in zip((first, second, third), p, strict=True):
        assert counts[law == 0].sum() == 0
        kept = law > 0
        expected = law[kept] / law.sum() * counts.sum()
        pvalues.append(stats.chisquare(counts[kept].numpy(), expected.numpy()).pvalue)
    assert min(pvalues) < 1e-6 if drafting == "wrong q" else min(pvalues) > 1e-3, pvalues


def test_draws_are_keyed_by_absolute_position():
    """A token drawn by the target is the same however the positions before it were cut into rounds."""
    logits = rows(1).expand(3, -1)
    plain = sample(logits[:1], [request(prompt=(1, 2), output=(3, 4, 5))])[0].token_ids
    moved = sample(logits[:1], [request(prompt=(1, 2, 3), output=(4, 5))])[0].token_ids
    assert plain == moved
    certain = torch.full((1, VOCAB), -50.0)
    certain[0, 9] = 50.0
    after_draft = sample(torch.cat((certain, logits[:1])), [request(drafts=[9], output=(3, 4))])[0]
    assert after_draft.token_ids == [9, *plain]
    seeds_differ = {sample(logits[:1], [request(seed=s)])[0].token_ids[0] for s in range(30)}
    assert len(seeds_differ) > 5


def test_a_nan_row_fails_the_request_that_emits_from_it_and_no_other():
    logits = rows(9)
    best = logits.argmax(-1).tolist()
    logits[1, 3], logits[4, 7], logits[6] = NAN, torch.inf, -torch.inf
    requests = [
        request(temperature=0.0, drafts=[best[0], best[1]], logprobs=1),
        request(seed=5, drafts=[3], logit_bias={4: 1.0}),
        request(seed=6, drafts=[5, 5]),
        request(temperature=0.0),
    ]
    results = sample(logits.clone(), requests)
    assert results[0].token_ids == [best[0]]
    assert len(results[0].logprobs) == 1
    assert "not finite" in results[0].error
    assert "position 4" in results[0].error
    assert results[3].error is None
    assert results[3].token_ids == [best[8]]
    assert results[2].error is None or results[2].num_accepted == 1
    rejecting = sample(logits[5:8].clone(), [request(drafts=[logits[5].argmin().item(), 1])])[0]
    assert (rejecting.error, rejecting.num_accepted, len(rejecting.token_ids)) == (None, 0, 1)
    for temperature in (0.0, 1.0):
        for bad in (1, 4, 6):
            alone = sample(logits[bad : bad + 1].clone(), [request(temperature=temperature, logprobs=0)])[0]
            assert "not finite" in alone.error
            assert alone.token_ids == []
            assert alone.logprobs == []


def test_a_bad_row_of_a_greedy_request_leaves_sampled_ones_alone():
    logits = rows(3)
    logits[0] = NAN
    logits[1, 9] = 90.0
    bad, fine = sample(logits, [request(temperature=0.0), request(drafts=[9])])
    assert bad.error is not None
    assert (fine.error, fine.num_accepted) == (None, 1)


def test_logits_of_inference_mode_can_be_changed():
    with torch.inference_mode():
        logits = rows(1)
    assert sample(logits, [request(allowed_token_ids=[7])])[0].token_ids == [7]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rules_that_leave_no_token_say_so(temperature):
    params = {"temperature": temperature, "allowed_token_ids": [5], "bad_words_token_ids": [[5]]}
    bad, fine = sample(rows(2), [request(**params), request(temperature=0.0)])
    assert "no token is allowed" in bad.error
    assert fine.error is None
    (masked,) = sample(rows(1).index_fill(1, torch.tensor([9]), NAN), [request(allowed_token_ids=[5])])
    assert "not finite" in masked.error
    (huge,) = sample(rows(1), [request(temperature=temperature, logit_bias={3: 1e39})])
    assert "overflow" in huge.error


def test_logprobs_are_raw_and_only_for_those_who_ask():
    logits, requests, q = mixed_batch()
    results = sample(logits.clone(), requests, q)
    for wanted, row, result in zip(requests, split(logits, requests), results, strict=True):
        if wanted.params.logprobs is None:
            assert result.logprobs is None
            continue
        exact = torch.log_softmax(row.double(), -1)
        assert len(result.logprobs) == len(result.token_ids) == result.num_accepted + 1
        for i, (token, entry) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
            assert entry.chosen.token_id == token
            assert entry.chosen.logprob == pytest.approx(exact[i, token].item(), abs=1e-5)
            assert entry.chosen.rank == 1 + (row[i] > row[i, token]).sum().item()
            assert len(entry.top) == wanted.params.logprobs


def test_greedy_batches_stay_in_their_dtype_and_touch_no_distribution(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("work that nobody asked for")

    for name in ("filtered_probabilities", "uniforms", "apply_token_rules", "position_logprobs"):
        monkeypatch.setattr(sampler, name, refuse)
    logits = rows(4).bfloat16()
    convert = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *a, **k: refuse() if x is logits else convert(x, *a, **k))
    results = sample(logits, [request(temperature=0.0, drafts=[1]), request(temperature=0.0), request(temperature=0.0)])
    assert [r.token_ids[-1] for r in results[1:]] == logits[2:].max(-1).indices.tolist()


def test_half_precision_logits_are_sampled_in_float32():
    logits = rows(2).bfloat16()
    requests = [request(presence_penalty=0.123, logprobs=1), request(seed=8, top_p=0.5)]
    assert sample(logits, requests) == sample(logits.float(), requests)


def test_a_step_without_requests_gives_nothing():
    assert sample(torch.empty(0, VOCAB), []) == []


@pytest.mark.parametrize(
    ("num_rows", "q_vocab", "message"),
    [(3, VOCAB, "need 2"), (2, VOCAB + 8, "vocabulary of 48"), (2, None, "q is None")],
)
def test_mismatched_inputs_are_refused(num_rows, q_vocab, message):
    q = None if q_vocab is None else torch.full((1, q_vocab), 1 / q_vocab)
    with pytest.raises(ValueError, match=message):
        sample(rows(num_rows), [request(drafts=[1], q_start=0)], q)
