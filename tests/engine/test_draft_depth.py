"""Choosing the depth of drafting changes no text, whatever drafter and load, and leaves every drafter's store right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.drafters.scratch import Scratch, assert_from_scratch
from tests.drafters.support import METHODS, at_random, record, save_echoing_target, trained
from tests.support import Pair, plain_llm, random_prompts, save_related_model, token_ids

from adaverify import LLM, SamplingParams
from adaverify.lab.trace import read_trace
from adaverify.lab.trace.recorder import Recorder
from adaverify.policy.cost import CostCurve, CostTable
from adaverify.policy.probing import ProbeSchedule

VOCAB, K = 24, 3
PROMPTS = random_prompts(16, VOCAB, seed=4)
GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
MIXED = [SamplingParams(temperature=i % 3 / 2, max_tokens=14, ignore_eos=True, seed=i) for i in range(6)]


def table(token_ms: float, first_ms: float, block_ms: float) -> CostTable:
    """A pass over t tokens costs 1 + token_ms t."""
    verify = CostCurve((1, 64), (1 + token_ms, 1 + 64 * token_ms))
    return CostTable(verify, CostCurve((1,), (block_ms,)), CostCurve((1,), (first_ms,)))


# tokens are cheap and passes are not: blocks end early; the other way round: drafts compete
STOPPING, COMPETING, DEAR = table(0.003, 0.08, 0.24), table(0.03, 0.01, 0.02), table(0.003, 50.0, 60.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "together": {"max_num_seqs": 16},
    "chunked": {"max_num_batched_tokens": 17},
    "preempted": {"num_kv_blocks": 14, "max_model_len": 40},
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("depth")
    target = save_echoing_target(folder / "target", VOCAB, scale=2.0, echo=1.0)
    pairs = {method: trained(folder / method, target, method) for method in METHODS}
    return pairs | {"draft_model": Pair(target, save_related_model(folder / "drafter", target, noise=0.05, seed=2))}


@pytest.fixture(scope="module")
def plain(pairs) -> list[list[int]]:
    return token_ids(plain_llm(pairs["mtp"].target).generate(PROMPTS, GREEDY))


def build(pair: Pair, costs: CostTable = STOPPING, **options: Any) -> LLM:
    speculative = {"adaptive_draft_depth": True} | options.pop("speculative", {})
    return pair.llm(costs, K, speculative=speculative, **options)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", [*METHODS, "draft_model"])
def test_greedy_text_is_that_without_speculation_at_any_depths(pairs, plain, method, setting):
    llm, count = at_random(build(pairs[method], **SETTINGS[setting])), 5 if setting == "alone" else len(PROMPTS)
    for _ in range(2):
        assert token_ids(llm.generate(PROMPTS[:count], GREEDY)) == plain[:count]
    stats = llm.stats()
    assert sum(stats.accepted) > 0
    assert 0 < stats.num_undrafted_steps < stats.num_draftable_steps
    assert (stats.num_preemptions > 0) == (setting == "preempted")
    assert stats.prefix_cache_hits > 0


@pytest.mark.parametrize("costs", [STOPPING, COMPETING], ids=["stopping", "competing"])
@pytest.mark.parametrize("setting", ["alone", "together"])
@pytest.mark.parametrize("method", [*METHODS, "draft_model"])
def test_greedy_text_is_that_without_speculation(pairs, plain, method, setting, costs):
    llm = build(pairs[method], costs, **SETTINGS[setting])
    llm.engine.speculation.depth_planner.probes = ProbeSchedule(0.1)
    count = 5 if setting == "alone" else len(PROMPTS)
    assert token_ids(llm.generate(PROMPTS[:count], GREEDY)) == plain[:count]
    stats = llm.stats()
    assert sum(stats.accepted) > 0
    assert 0 < stats.mean_draft_depth < K, "the text is that of blocks that were cut short"


@pytest.mark.parametrize("options", [{}, {"num_kv_blocks": 12, "max_model_len": 32}], ids=["roomy", "preempted"])
@pytest.mark.parametrize("method", METHODS)
def test_blocks_equal_a_pass_from_scratch(pairs, method, options):
    """After steps without drafts, after blocks that ended early, after rejection and preemption."""
    llm = at_random(build(pairs[method], **options))
    calls = record(llm)
    for _ in range(2):
        llm.generate(PROMPTS[:6], MIXED)
    depths = {call.block.depth for call in calls}
    assert depths == {1, 2, 3}
    assert assert_from_scratch(Scratch(pairs[method]), calls) > 60


@pytest.mark.parametrize("costs", [STOPPING, COMPETING], ids=["stopping", "competing"])
@pytest.mark.parametrize("setting", ["alone", "together"])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "dflash2", "dflash"])
def test_with_coupled_verification_no_text_changes(pairs, method, setting, costs):
    prompts = PROMPTS[:5] if setting == "alone" else PROMPTS
    params = [SamplingParams(temperature=1.0, top_p=0.9, seed=i, max_tokens=12) for i in range(len(prompts))]
    expected = token_ids(plain_llm(pairs[method].target).generate(prompts, params))
    llm = build(pairs[method], costs, speculative={"rejection_sample_method": "coupled"}, **SETTINGS[setting])
    assert token_ids(llm.generate(prompts, params)) == expected
    assert sum(llm.stats().accepted) > 0


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp"])
def test_blocks_end_where_they_stop_paying(pairs, method):
    llm = build(pairs[method], max_num_seqs=1)
    calls = record(llm)
    llm.generate(PROMPTS[:5], SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=1))
    stats, depths = llm.stats(), [call.block.depth for call in calls]
    assert len(set(depths)) > 1, "some blocks end early, and some do not"
    assert stats.drafted == stats.admitted, "what is drafted is verified"
    assert stats.draft_depth_sum == sum(depths)
    assert stats.num_draftable_steps == len(depths) + stats.num_undrafted_steps
    assert stats.mean_draft_depth == pytest.approx(sum(depths) / stats.num_draftable_steps)


def test_where_drafts_compete_all_are_drafted_to_one_depth(pairs):
    llm = build(pairs["draft_model"], COMPETING)
    budgets = []
    choose = llm.engine.speculation.choose
    llm.engine.speculation.choose = lambda plan: budgets.append(choose(plan)) or budgets[-1]
    llm.generate(PROMPTS, SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=1))
    trimmed = [choice for choice in budgets if choice.depth and choice.go_on is None]
    assert trimmed
    stats = llm.stats()
    assert sum(stats.drafted) > sum(stats.admitted) > sum(stats.accepted) > 0


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "dflash"])
def test_what_does_not_pay_is_not_drafted_until_it_does(pairs, plain, method):
    llm = build(pairs[method], DEAR)
    assert token_ids(llm.generate(PROMPTS, GREEDY)) == plain
    stats = llm.stats()
    assert sum(stats.drafted) == stats.draft_depth_sum == 0
    assert stats.num_undrafted_steps == stats.num_draftable_steps > 0
    llm.engine.speculation.set_costs(STOPPING)
    assert token_ids(llm.generate(PROMPTS, GREEDY)) == plain
    assert sum(llm.stats().accepted) > 0, "it recovers"


@pytest.mark.parametrize("method", ["draft_model", "dflash"])
def test_probes_find_the_way_back(pairs, method):
    llm = build(pairs[method], max_num_seqs=4)
    planner = llm.engine.speculation.depth_planner
    planner.outlook._weight.fill_(20.0)
    planner.outlook._sum.fill_(0.0)
    planner.probes = ProbeSchedule(0.0)
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=1)
    llm.generate(PROMPTS[:4], params)
    assert sum(llm.stats().drafted) == 0, "what is thought hopeless is never tried"
    planner.probes = ProbeSchedule(0.1)
    llm.generate(PROMPTS, params)
    stats = llm.stats()
    assert all(observed > 0 for observed in stats.observed), "probes label every position"
    drafted = sum(stats.drafted)
    planner.probes = ProbeSchedule(0.0)
    llm.generate(PROMPTS[:4], params)
    assert sum(llm.stats().drafted) > drafted, "and drafting goes on without them"


def test_without_costs_or_trimming_or_when_switched_off_every_block_is_whole(pairs):
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=1)
    off = pairs["eagle3"].llm(DEAR, K, speculative={"adaptive_draft_depth": False})
    unknown, untrimmed = build(pairs["eagle3"]), build(pairs["eagle3"], DEAR)
    unknown.engine.speculation.costs = None
    # as `adaverify record --no-trim` does
    untrimmed.engine.speculation.adaptive = False
    for llm in (off, unknown, untrimmed):
        calls = record(llm)
        llm.generate(PROMPTS, params)
        assert all(call.block.depth == max(call.num_drafts) for call in calls)
        assert llm.stats().num_undrafted_steps == 0


def test_a_trace_holds_the_drafts_that_were_made(pairs, tmp_path):
    llm = build(pairs["eagle3"], max_num_seqs=2)
    recorder = Recorder(llm.engine, tmp_path, wants_overlaps=True)
    before = llm.stats()
    llm.generate(PROMPTS[:6], SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=3))
    recorder.close()
    after, drafts = llm.stats(), read_trace([tmp_path]).drafts
    for i in range(K):
        here = drafts.position == i + 1
        assert here.sum() == after.drafted[i] - before.drafted[i]
        assert drafts.accepted[here].sum() == after.accepted[i] - before.accepted[i]
    assert 0 < (drafts.position == K).sum() < (drafts.position == 1).sum()
    assert np.isfinite(drafts.q_sampled).all()
    assert np.isfinite(drafts.overlap[drafts.admitted]).all()
