"""The standalone drafter against plain forward passes of its model."""

from __future__ import annotations

import pytest
import torch
from tests.drafters.support import Call, at_random, record
from tests.support import random_prompts
from transformers import AutoModelForCausalLM

from adaverify import SamplingParams
from adaverify.policy.features import log_odds_of_max
from adaverify.sampling.processors import SamplingTensors, draft_temperature, filtered_probabilities

K = 3
PROMPTS = random_prompts(6, vocab_size=48, seed=7)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.6, top_k=5, max_tokens=15, ignore_eos=True),
    SamplingParams(temperature=1.5, top_p=0.7, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=1.0, min_p=0.1, max_tokens=9, ignore_eos=True),
    SamplingParams(temperature=0.0, max_tokens=18, ignore_eos=True),
]


@pytest.fixture(scope="module")
def model(pair):
    return AutoModelForCausalLM.from_pretrained(pair.drafter, dtype=torch.float32).eval()


@torch.inference_mode()
def logits_after(model, text: list[int], drafts: list[int]) -> torch.Tensor:
    """Logits [K, V] of the draft positions, from scratch."""
    return model(torch.tensor([text + drafts])).logits[0, len(text) - 1 : -1]


@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 12, "max_num_seqs": 6}, {"num_kv_blocks": 12, "max_model_len": 48}],
    ids=["roomy", "chunked", "preempted"],
)
def test_blocks_equal_a_pass_from_scratch(pair, model, sampling, options):
    """After acceptance, rejection, trimming, preemption: the drafter's store holds the text, no more and no less."""
    llm = pair.llm(k=K, sampling=sampling, **options)
    calls = record(llm)
    for _ in range(2):
        llm.generate(PROMPTS, PARAMS)
    stats = llm.stats()
    assert sum(stats.accepted) > 10
    assert sum(stats.drafted) > sum(stats.admitted) > sum(stats.accepted)
    assert (stats.num_preemptions > 0) == ("num_kv_blocks" in options)
    assert len(calls) > 10
    assert_from_scratch(model, calls, sampling)


def test_blocks_equal_a_pass_from_scratch_at_any_depth(pair, model):
    """After steps without drafts, and after blocks that ended early, whose last draft was drawn but not read."""
    llm = at_random(pair.llm(k=K), seed=1)
    calls = record(llm)
    for _ in range(2):
        llm.generate(PROMPTS, PARAMS)
    assert {call.block.depth for call in calls} == {1, 2, 3}
    assert_from_scratch(model, calls, "probabilistic")


def assert_from_scratch(model, calls: list[Call], sampling: str) -> None:
    for call in calls:
        for row, (text, params, count) in enumerate(zip(call.texts, call.params, call.num_drafts, strict=True)):
            drafts = call.block.token_ids[row, :count].tolist()
            if not count:
                continue
            logits = logits_after(model, text, drafts)
            each = SamplingTensors.from_params([params] * count, [0] * count, "cpu")
            features = log_odds_of_max(logits, each.temperature)
            torch.testing.assert_close(call.block.features[row, :count], features, rtol=1e-3, atol=1e-3)
            if sampling == "greedy" or params.is_greedy:
                assert drafts == logits.argmax(-1).tolist()
            if call.block.laws is not None and not params.is_greedy:
                assert call.block.laws.columns is None
                q = call.block.laws.q.view(len(call.texts), -1, 48)[row, :count]
                colder = draft_temperature(each.temperature)
                expected = filtered_probabilities(logits, colder, each.top_k, each.top_p, each.min_p)
                torch.testing.assert_close(q, expected / expected.sum(-1, keepdim=True), rtol=1e-3, atol=1e-4)
                assert (q.gather(1, torch.tensor(drafts)[:, None]) > 0).all()


def test_q_is_the_law_that_drafts_are_drawn_from(pair):
    """Many requests with one prompt: the frequencies of the first draft, in the rounds of one text."""
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=5, ignore_eos=True, allowed_token_ids=[4])
    llm = pair.llm(costs=None, k=2, max_num_seqs=256, max_num_batched_tokens=1024)
    calls = record(llm)
    llm.generate([[1, 2, 3]] * 1500, params)
    counts, law = torch.zeros(48), None
    for call in calls:
        for row, text in enumerate(call.texts):
            if text == [1, 2, 3, 4]:
                counts[call.block.token_ids[row, 0]] += 1
                law = call.block.laws.q[call.block.law_start(row)]
    assert counts.sum() == 1500
    assert counts[law == 0].sum() == 0
    kept = law > 0
    expected = law[kept] * 1500
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    degrees = int(kept.sum()) - 1
    assert degrees > 2
    # five standard deviations of the chi-square law
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
def test_q_is_left_out_where_drafts_are_one_hot(pair, sampling):
    llm = pair.llm(costs=None, k=K, sampling=sampling)
    calls = record(llm)
    llm.generate(PROMPTS[:2], [PARAMS[0], PARAMS[5]])
    assert all(call.block.laws is None and call.block.law_start(1) is None for call in calls)
    calls.clear()
    llm.generate(PROMPTS[:2], [PARAMS[0], PARAMS[1]])
    mixed = [call for call in calls if not all(params.is_greedy for params in call.params)]
    assert mixed
    assert all((call.block.laws is None) == (sampling == "greedy") for call in mixed)


def test_cached_blocks_hold_what_the_drafter_has_read(pair):
    """When all drafts of the last round are accepted, the drafter has drawn the last one but not read it."""
    twins = type(pair)(pair.target, pair.target)
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    llm = twins.llm(costs=None, k=K)
    calls = record(llm)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = random_prompts(4, vocab_size=46, longest=1, seed=9)
    # 1 + 12 tokens: the target's blocks are full to the last token but one
    longer = [
        prompt + output.outputs[0].token_ids
        for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True)
    ]
    assert calls[-1].num_drafts[0] > 0
    calls.clear()
    llm.generate(longer, params)
    assert llm.stats().prefix_cache_hits > 0
    for row, text in enumerate(calls[0].texts):
        logits = logits_after(model, text, calls[0].block.token_ids[row].tolist())
        features = log_odds_of_max(logits, torch.ones(K))
        torch.testing.assert_close(calls[0].block.features[row], features, rtol=1e-3, atol=1e-3)


def test_depth_zero_only_reads_the_prompts(pair):
    llm = pair.llm(costs=None, k=K, max_num_batched_tokens=16)
    engine = llm.engine
    engine.add_request(list(range(40)), SamplingParams(temperature=0.0, max_tokens=1), "a")
    seen = []
    while engine.has_unfinished:
        engine.step()
        seen += [request.num_draft_computed for request in engine.scheduler.running]
    assert seen == [16, 32]
    assert sum(llm.stats().drafted) == 0
