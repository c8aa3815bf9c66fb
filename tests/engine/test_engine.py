"""Greedy text is the target's own, whatever the load, the memory and the speculation."""

from __future__ import annotations

import pytest
from tests.support import TRIMMING_COSTS, plain_llm, random_prompts, token_ids

from adaverify import SamplingParams
from adaverify.policy.cost import CostCurve, CostTable

PROHIBITIVE = CostTable(verify=CostCurve((1, 64), (1.0, 1e6)))


def is_drained(llm) -> bool:
    stats = llm.stats()
    free = llm.engine.pool.num_free == llm.engine.pool.capacity
    return free and stats.num_requests_running == stats.num_requests_waiting == 0 and not llm.engine.has_unfinished


@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_equals_generate_without_speculation(pair, prompts, reference, greedy, concurrency):
    llm = plain_llm(pair.target, max_num_seqs=concurrency)
    assert token_ids(llm.generate(prompts, greedy)) == reference
    assert is_drained(llm)


@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
@pytest.mark.parametrize("concurrency", [1, 4, 16])
def test_equals_generate_with_adaptive_verification(pair, prompts, reference, greedy, concurrency, sampling):
    llm = pair.llm(sampling=sampling, max_num_seqs=concurrency)
    assert token_ids(llm.generate(prompts, greedy)) == reference
    stats = llm.stats()
    # sixteen at once have their prompts read in the steps of a few rounds, where little is worth verifying
    assert sum(stats.drafted) > sum(stats.admitted) > sum(stats.accepted) > 10
    assert is_drained(llm)


@pytest.mark.parametrize("speculating", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 5, "max_num_seqs": 4},
        {"max_num_batched_tokens": 3, "max_num_seqs": 3, "enable_prefix_caching": False},
        {"enable_prefix_caching": False},
        {"block_size": 1},
        {"block_size": 32},
        {"num_kv_blocks": 14, "max_model_len": 48},
        {"num_kv_blocks": 12, "max_model_len": 48, "max_num_batched_tokens": 17},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_memory_and_chunks_change_nothing(pair, prompts, reference, greedy, options, speculating):
    llm = pair.llm(**options) if speculating else plain_llm(pair.target, **options)
    assert token_ids(llm.generate(prompts, greedy)) == reference
    stats = llm.stats()
    assert (stats.num_preemptions > 0) == ("num_kv_blocks" in options)
    assert not speculating or sum(stats.accepted) > 0
    assert is_drained(llm)


@pytest.mark.parametrize("speculating", [False, True])
def test_a_cached_prompt_gives_the_same_text(pair, prompts, reference, greedy, speculating):
    llm = pair.llm() if speculating else plain_llm(pair.target)
    for round_number in range(2):
        assert token_ids(llm.generate(prompts, greedy)) == reference
        assert (llm.stats().prefix_cache_hits > 0) == (round_number == 1)
    # a prompt that goes on with what was generated finds those blocks too
    before = llm.stats().prefix_cache_hits
    longer = [prompts[0] + reference[0][:12]]
    assert token_ids(llm.generate(longer, SamplingParams(temperature=0.0, max_tokens=8))) == [reference[0][12:20]]
    assert llm.stats().prefix_cache_hits - before >= len(prompts[0]) + 12 - 2 * llm.config.block_size


def test_200_requests_into_a_pool_that_holds_20(pair):
    distinct = random_prompts(40, vocab_size=48, longest=8, seed=3)
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    expected = token_ids(plain_llm(pair.target, max_num_seqs=1).generate(distinct, params))
    # 24 tokens a request at most, 6 blocks of 4
    llm = pair.llm(k=2, num_kv_blocks=120, max_model_len=32, max_num_seqs=64, max_num_batched_tokens=256)
    assert token_ids(llm.generate(distinct * 5, params)) == expected * 5
    assert llm.stats().num_preemptions > 0
    assert is_drained(llm)


def test_nothing_hangs_as_a_batch_drains(pair, prompts, reference):
    llm = pair.llm()
    params = [SamplingParams(temperature=0.0, max_tokens=1 + i) for i in range(len(prompts))]
    engine = llm.engine
    for i, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(prompt, one, str(i))
    texts: dict[str, list[int]] = {str(i): [] for i in range(len(prompts))}
    for _ in range(len(prompts) + 2):
        for delta in engine.step():
            texts[delta.request_id] += delta.token_ids
    assert not engine.has_unfinished, "every step gives every running request a token"
    assert list(texts.values()) == [text[: 1 + i] for i, text in enumerate(reference)]
    assert is_drained(llm)
    assert engine.step() == []


def test_a_budget_of_zero_is_plain_decoding(pair, prompts, reference, greedy):
    llm = pair.llm(costs=PROHIBITIVE)
    assert token_ids(llm.generate(prompts, greedy)) == reference
    stats = llm.stats()
    assert sum(stats.drafted) > 0
    assert sum(stats.admitted) == stats.num_verify_rounds == stats.draft_budget == 0
    llm.engine.speculation.set_costs(TRIMMING_COSTS)
    assert token_ids(llm.generate(prompts, greedy)) == reference
    assert sum(llm.stats().admitted) > 0, "it recovers"


def test_counters(pair, prompts, greedy):
    llm = pair.llm()
    tokens = token_ids(llm.generate(prompts, greedy))
    stats = llm.stats()
    assert stats.generation_tokens == sum(map(len, tokens))
    assert stats.prompt_tokens == sum(map(len, prompts))
    assert sum(stats.finished.values()) == len(prompts)
    assert stats.num_verify_rounds <= stats.num_draft_rounds == stats.drafted[0]
    assert stats.num_verify_rounds == stats.admitted[0]
    for i, (drafted, admitted, accepted, observed) in enumerate(
        zip(stats.drafted, stats.admitted, stats.accepted, stats.observed, strict=True)
    ):
        assert drafted >= admitted >= observed >= accepted
        assert 0 < stats.predicted_sum[i] < max(observed, 1) or observed == 0
        if i:
            # draft i has a label only where draft i - 1 was accepted
            assert observed <= stats.accepted[i - 1]
            assert drafted <= stats.drafted[i - 1]
    assert stats.observed[0] == stats.admitted[0]


def test_without_costs_everything_is_verified(pair, prompts, reference, greedy):
    llm = pair.llm(costs=None)
    assert token_ids(llm.generate(prompts, greedy)) == reference
    stats = llm.stats()
    assert stats.drafted == stats.admitted
    # the draft rounds of a run in which nothing else samples: one more token each
    first_tokens = len(prompts)
    undrafted = sum(len(text) == greedy.max_tokens for text in reference)
    assert stats.generation_tokens <= first_tokens + stats.num_draft_rounds + sum(stats.accepted) + undrafted


@pytest.mark.parametrize(("max_tokens", "drafted"), [(1, [0, 0]), (2, [0, 0]), (3, [1, 0]), (4, [1, 1])])
def test_the_last_token_is_never_drafted(pair, prompts, reference, max_tokens, drafted):
    """With the target as its own drafter every draft is accepted, so the rounds are known."""
    twins = type(pair)(pair.target, pair.target)
    llm = twins.llm(costs=None, k=2)
    output = llm.generate([prompts[0]], SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True))
    assert token_ids(output) == [reference[0][:max_tokens]]
    stats = llm.stats()
    assert stats.drafted == stats.admitted == stats.accepted == drafted
