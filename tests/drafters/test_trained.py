"""Drafters that read the target's hidden states: the text they help to write, and every block that they propose."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.drafters.scratch import Scratch, assert_from_scratch
from tests.drafters.support import METHODS, record, save_echoing_target, spoil, trained
from tests.support import Pair, plain_llm, random_prompts, token_ids

from adaverify import SamplingParams
from adaverify.drafters import chain
from adaverify.engine.depth import DraftChoice
from adaverify.policy.cost import CostCurve, CostTable

VOCAB = 24
PROMPTS = random_prompts(16, VOCAB, seed=4)
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=1.0, max_tokens=14, ignore_eos=True, seed=1),
    SamplingParams(temperature=0.6, top_k=5, max_tokens=11, ignore_eos=True, seed=2),
    SamplingParams(temperature=1.5, top_p=0.7, max_tokens=14, ignore_eos=True, seed=3),
    SamplingParams(temperature=1.0, min_p=0.1, max_tokens=7, ignore_eos=True, seed=4),
    SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True),
]
# untrained drafters are unsure: a machine on which even that is worth a try, now and then
COSTS = CostTable(verify=CostCurve((1, 64), (1.0, 3.0)), draft=CostCurve((1, 64), (0.1, 0.2)))
SETTINGS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1, "costs": CostTable(CostCurve((1, 64), (1.0, 8.0)), COSTS.draft)},
    "together": {},
    "untrimmed": {"costs": None},
    "chunked": {"max_num_batched_tokens": 17},
    "preempted": {"num_kv_blocks": 14, "max_model_len": 40},
}
# a sliding layer before a full one
SLIDING = ["sliding_attention", "full_attention"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {method: (method, {}) for method in METHODS} | {
    "eagle3 sliding": ("eagle3", {"layer_types": SLIDING, "norm_output": True, "norm_before_residual": False}),
    "dflash sliding from anchor": ("dflash", {"layer_types": SLIDING, "sample_from_anchor": True}),
    "dspark rnn": ("dspark", {"markov_head_type": "rnn", "sample_from_anchor": False, "confidence_temperatures": None}),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("trained")
    target = save_echoing_target(folder / "target", VOCAB, scale=2.0, echo=1.0)
    return {name: trained(folder / name, target, method, **options) for name, (method, options) in VARIANTS.items()}


@pytest.fixture(scope="module")
def plain(pairs) -> list[list[int]]:
    return token_ids(plain_llm(pairs["mtp"].target).generate(PROMPTS, GREEDY))


def deepest(pair: Pair) -> int:
    return 4 if pair.method == "dspark" else 3


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_greedy_text_is_that_without_speculation(pairs, plain, method, setting):
    count = 5 if setting == "alone" else len(PROMPTS)
    llm = pairs[method].llm(k=deepest(pairs[method]), **({"costs": COSTS} | SETTINGS[setting]))
    for _ in range(2):
        assert token_ids(llm.generate(PROMPTS[:count], GREEDY)) == plain[:count]
    stats = llm.stats()
    assert sum(stats.accepted) > 0
    assert (sum(stats.drafted) > sum(stats.admitted)) == (setting != "untrimmed")
    assert (stats.num_preemptions > 0) == (setting == "preempted")
    # prompts of the second call, and what preempted requests had computed
    assert stats.prefix_cache_hits > 0


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 12, "max_num_seqs": 6}, {"num_kv_blocks": 12, "max_model_len": 32}],
    ids=["roomy", "chunked", "preempted"],
)
def test_blocks_equal_a_pass_from_scratch(pairs, variant, options):
    """After acceptance, rejection, trimming, preemption and cached prompts: laws, features and confidences."""
    pair = pairs[variant]
    llm = pair.llm(COSTS, k=3, **options)
    calls = record(llm)
    for _ in range(2):
        llm.generate(PROMPTS[:6], PARAMS)
    stats = llm.stats()
    assert sum(stats.drafted) > sum(stats.admitted) > sum(stats.accepted) > 0
    assert (stats.num_preemptions > 0) == ("num_kv_blocks" in options)
    assert stats.prefix_cache_hits > 0
    assert assert_from_scratch(Scratch(pair), calls) > 150


@pytest.mark.parametrize("rows", [5, 1024])
@pytest.mark.parametrize("method", ["eagle3", "mtp", "eagle3 sliding"])
def test_a_drafter_catches_up_after_steps_without_drafts(pairs, monkeypatch, method, rows):
    """Longer stretches than a verified block, which only leave keys and values, in passes of so many rows."""
    monkeypatch.setattr(chain, "MAX_FILL_ROWS", rows)
    pair = pairs[method]
    llm, steps = pair.llm(costs=None, k=3), itertools.count()
    speculation = llm.engine.speculation

    def choose(plan):
        depth = 0 if next(steps) % 8 else min(3, max(plan.num_drafts, default=0))
        return DraftChoice(depth, torch.tensor(plan.max_draft_budget if depth else 0))

    monkeypatch.setattr(speculation, "choose", choose)
    calls = record(llm)
    llm.generate(PROMPTS[:6], [replace(params, max_tokens=30) for params in PARAMS])
    assert sum(sum(call.num_drafts) > 0 for call in calls) > 2
    assert_from_scratch(Scratch(pair), calls)


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_prompts_that_come_while_nothing_is_drafted_are_read_later(pairs, monkeypatch, method):
    pair = pairs[method]
    llm = pair.llm(costs=None, k=3, max_num_batched_tokens=12, max_num_seqs=6)
    speculation, read = llm.engine.speculation, []
    fill = speculation.drafter._fill
    monkeypatch.setattr(speculation.drafter, "_fill", lambda s: (read.extend(len(x.token_ids) for x in s), fill(s)))
    with monkeypatch.context() as silence:
        silence.setattr(speculation, "choose", lambda plan: DraftChoice(0, torch.tensor(0)))
        llm.generate(PROMPTS[:6], PARAMS)
    # only those that came before anyone decoded, and in the step behind
    assert sum(read) <= 24 < sum(map(len, PROMPTS[:6]))
    calls = record(llm)
    llm.generate(PROMPTS[:6], PARAMS)
    assert llm.stats().prefix_cache_hits > 0
    assert_from_scratch(Scratch(pair), calls)
    # what is cached has now been read, too
    read.clear()
    llm.generate([[*max(PROMPTS[:6], key=len), 1]], PARAMS[1])
    assert sum(read) <= llm.config.block_size


@pytest.mark.parametrize("method", METHODS)
def test_greedy_drafts_are_the_likeliest_tokens(pairs, method):
    llm = pairs[method].llm(costs=None, k=deepest(pairs[method]), sampling="greedy")
    calls = record(llm)
    llm.generate(PROMPTS[:6], PARAMS)
    assert all(call.block.laws is None for call in calls)
    assert sum(llm.stats().accepted) > 0
    assert assert_from_scratch(Scratch(pairs[method]), calls, greedy=True) > 100


@pytest.mark.parametrize("method", METHODS)
def test_drafts_end_where_the_text_must(pairs, method):
    pair = pairs[method]
    prompts = random_prompts(6, VOCAB, seed=8)
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in range(1, 7)]
    long = [[(7 * i + j) % (VOCAB - 2) for j in range(i)] for i in range(16, 22)]
    endless = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    expected = plain_llm(pair.target, max_model_len=22)
    llm = pair.llm(costs=None, k=3, max_model_len=22)
    calls = record(llm)
    for texts, wanted in ((prompts, params), (long, [endless] * 6)):
        assert token_ids(llm.generate(texts, wanted)) == token_ids(expected.generate(texts, wanted))
    usable = {count for call in calls for count in call.num_drafts}
    assert usable == {0, 1, 2, 3}
    assert sum(llm.stats().drafted) == sum(sum(call.num_drafts) for call in calls)
    assert_from_scratch(Scratch(pair), calls)


@pytest.mark.parametrize(
    ("method", "tensor"),
    [
        ("eagle3", "fc"), ("eagle3", "mlp"), ("mtp", "o_proj"), ("mtp", "final_layernorm"), ("dflash", "fc"),
        ("dflash", "q_proj"), ("dflash2", "kernel_projection"), ("dspark", "mlp"), ("dspark", "confidence_head"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("costs", [COSTS, None], ids=["trimmed", "untrimmed"])
def test_a_sick_drafter_costs_drafts_only(pairs, plain, tmp_path, method, tensor, costs):
    sick = Pair(pairs[method].target, spoil(pairs[method].drafter, tmp_path / "sick", tensor), method)
    llm = sick.llm(costs=costs)
    assert token_ids(llm.generate(PROMPTS, GREEDY)) == plain
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True))
    assert [output.outputs[0].finish_reason for output in outputs] == ["length"] * len(PROMPTS)
    if tensor != "fc":
        # a NaN in a layer, or in the head, spoils every draft; in what is made of the target's states it becomes 0
        assert sum(llm.stats().drafted) == 0


@pytest.mark.parametrize(("method", "tensor"), [("dspark", "markov_w1"), ("dflash2", "predecessor_codebook")])
def test_a_token_that_makes_the_drafter_sick_costs_its_own_drafts_only(pairs, plain, tmp_path, method, tensor):
    """The NaN is in the row of token 0, which only drafts behind that token read."""
    sick = Pair(pairs[method].target, spoil(pairs[method].drafter, tmp_path / "sick", tensor), method)
    llm, healthy = sick.llm(costs=None), pairs[method].llm(costs=None)
    calls = record(llm)
    for each in (llm, healthy):
        assert token_ids(each.generate(PROMPTS, GREEDY)) == plain
    assert 0 < sum(llm.stats().drafted) < sum(healthy.stats().drafted)
    for call in calls:
        for text, features, tokens in zip(call.texts, call.block.features, call.block.token_ids, strict=True):
            previous = [text[-1], *tokens.tolist()[:-1]]
            assert features.isnan().tolist() == [token == 0 for token in previous]
