"""Coupled verification: a seed gives one text, whatever is drafted, trimmed or batched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.drafters.support import save_echoing_target, spoil, trained
from tests.support import Pair, plain_llm, random_prompts, save_related_model, token_ids

from adaverify import LLM, SamplingParams
from adaverify.engine.speculation import Round
from adaverify.policy.cost import CostCurve, CostTable
from adaverify.sampling import coupled

VOCAB = 24
COUPLED = {"rejection_sample_method": "coupled"}
# a machine on which some drafts of every pair are worth their cost, and some are not
COSTS = CostTable(verify=CostCurve((1, 64), (1.0, 3.0)), draft=CostCurve((1, 64), (0.1, 0.2)))
ALONE = CostTable(verify=CostCurve((1, 64), (1.0, 8.0)), draft=CostCurve((1, 64), (0.1, 0.2)))
PROMPTS = random_prompts(21, VOCAB, seed=11)
METHODS = ("draft_model", "eagle3", "dflash2", "dflash")


def params(i: int) -> SamplingParams:
    """Every kind of law that a server is asked for, one after another."""
    kinds: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9, "temperature": 0.8},
        {"temperature": 0.0},
        {"top_k": 5, "temperature": 1.3},
        {"min_p": 0.1, "repetition_penalty": 1.3},
        {"logit_bias": {3: 1.5, 7: -2.0}, "presence_penalty": 0.4, "min_tokens": 6, "logprobs": 2},
        {"bad_words_token_ids": [[2, 3], [5]], "top_p": 0.95},
    ]
    return SamplingParams(seed=i % 5, max_tokens=16, **kinds[i % len(kinds)])


PARAMS = [params(i) for i in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("coupled")
    target = save_echoing_target(folder / "target", VOCAB, scale=2.0, echo=1.0)
    pairs = {method: trained(folder / method, target, method) for method in METHODS[1:]}
    return pairs | {"draft_model": Pair(target, save_related_model(folder / "drafter", target, noise=0.05, seed=2))}


@pytest.fixture(scope="module")
def plain(pairs) -> list[list[int]]:
    """Without a drafter, one by one."""
    return texts(plain_llm(pairs["eagle3"].target, max_num_seqs=1))


def texts(llm: LLM) -> list[list[int]]:
    return token_ids(llm.generate(PROMPTS, PARAMS))


def build(pair: Pair, **options: Any) -> LLM:
    return pair.llm(**({"speculative": COUPLED, "costs": COSTS} | options))


def test_without_a_drafter_the_text_does_not_depend_on_the_batch(pairs, plain):
    assert len({tuple(text) for text in plain}) == len(plain)
    assert texts(plain_llm(pairs["eagle3"].target)) == plain
    assert texts(plain_llm(pairs["eagle3"].target, num_kv_blocks=16, max_model_len=40)) == plain


SETTINGS: dict[str, dict[str, Any]] = {
    "trimmed": {"k": 3},
    "untrimmed": {"k": 3, "costs": None},
    "k=1": {"k": 1, "costs": None},
    "alone": {"k": 3, "costs": ALONE, "max_num_seqs": 1},
    "alone untrimmed": {"k": 3, "costs": None, "max_num_seqs": 1},
    "greedy drafts": {"k": 3, "sampling": "greedy"},
    "preempted": {"k": 3, "num_kv_blocks": 14, "max_model_len": 40},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_that_without_a_drafter(pairs, plain, method, setting):
    llm = build(pairs[method], **SETTINGS[setting])
    assert texts(llm) == plain
    stats = llm.stats()
    assert sum(stats.drafted) >= sum(stats.admitted) > sum(stats.accepted) > 0
    assert (stats.num_preemptions > 0) == (setting == "preempted")
    untrimmed = SETTINGS[setting].get("costs", COSTS) is None
    assert (sum(stats.drafted) == sum(stats.admitted)) == untrimmed


@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
def test_deep_blocks_change_nothing(pairs, plain, method):
    assert texts(build(pairs[method], k=7)) == plain


def test_a_confidence_head_changes_nothing(pairs, plain, tmp_path):
    llm = build(trained(tmp_path, pairs["eagle3"].target, "dspark"))
    assert llm.engine.speculation.reads_head
    assert texts(llm) == plain


def test_other_seeds_give_other_texts(pairs, plain):
    others = [replace(each, seed=100 + i) for i, each in enumerate(PARAMS)]
    drawn = token_ids(build(pairs["eagle3"]).generate(PROMPTS, others))
    for text, other, each in zip(plain, drawn, PARAMS, strict=True):
        assert (text == other) == each.is_greedy or len(text) < 3


def test_a_twin_of_the_target_is_always_right(pairs, monkeypatch):
    """Drafter and target see the same noise at every position; a twin need not allow for being less well informed."""
    monkeypatch.setattr(coupled, "SHARPNESS", 1.0)
    target = pairs["eagle3"].target
    llm = build(Pair(target, target), costs=None)
    some = [SamplingParams(seed=i, max_tokens=13, ignore_eos=True, top_p=0.9) for i in range(len(PROMPTS))]
    llm.generate(PROMPTS, some)
    stats = llm.stats()
    assert sum(stats.accepted) == sum(stats.admitted) > 100


def test_a_sick_drafter_costs_drafts_only(pairs, plain, tmp_path):
    healthy = pairs["dflash2"]
    sick = Pair(healthy.target, spoil(healthy.drafter, tmp_path / "sick", "predecessor_codebook"), "dflash2")
    llm = build(sick, costs=None)
    assert texts(llm) == plain
    usual = build(healthy, costs=None)
    texts(usual)
    assert 0 < sum(llm.stats().drafted) < sum(usual.stats().drafted)


def rounds_of(llm: LLM) -> list[Round]:
    """Every round of ``llm`` from now on."""
    rounds: list[Round] = []
    speculation = llm.engine.speculation
    admit = speculation.admit

    def recording(*args):
        current = admit(*args)
        if current is not None:
            rounds.append(current)
        return current

    speculation.admit = recording
    return rounds


@pytest.mark.parametrize("method", METHODS)
def test_the_estimator_reads_margins_and_learns_from_them(pairs, method):
    llm = build(pairs[method])
    estimator = llm.engine.speculation.estimator
    estimator.refit_interval = 8
    rounds = rounds_of(llm)
    estimator.slopes.fill_(0.01)
    intercepts = estimator.intercepts.clone()
    texts(llm)
    assert estimator.num_refits > 0
    assert (estimator.slopes != 0.01).any()
    assert (estimator.intercepts != intercepts).any()
    for current in rounds:
        depth = current.block.depth
        assert current.block.laws is None
        margins = current.block.margin
        assert (margins[margins.isfinite()] >= 0).all()
        torch.testing.assert_close(current.inputs[:, :depth, 0], current.block.features)
        torch.testing.assert_close(current.inputs[:, :depth, 1], margins)


def test_drafts_with_a_wide_margin_are_accepted_more_often(pairs):
    llm = build(pairs["draft_model"], costs=None, k=1)
    rounds = rounds_of(llm)
    accepted: list[bool] = []
    observe = llm.engine.speculation.observe
    llm.engine.speculation.observe = lambda current, count, *more: (
        accepted.extend(bool(c) for c in count) or observe(current, count, *more)
    )
    sampled = [SamplingParams(seed=i, max_tokens=30, ignore_eos=True) for i in range(len(PROMPTS))]
    llm.generate(PROMPTS, sampled)
    drafted = torch.cat([current.num_drafts > 0 for current in rounds])
    margin = torch.cat([current.block.margin[:, 0] for current in rounds])[drafted]
    hit = torch.tensor(accepted)[drafted].double()
    assert len(hit) > 300
    wide = margin > margin.median()
    assert hit[wide].mean() > hit[~wide].mean() + 0.2


def test_the_budget_is_that_of_the_present_block(pairs):
    llm = build(pairs["eagle3"])
    speculation = llm.engine.speculation
    chosen = []
    choose = speculation.choose
    speculation.choose = lambda plan: chosen.append(choose(plan)) or chosen[-1]
    rounds = rounds_of(llm)
    texts(llm)
    assert chosen
    assert all(choice.budget is None for choice in chosen)
    assert len({int(current.budget) for current in rounds}) > 3


def test_laws_are_kept_where_a_trace_needs_them(pairs):
    llm = build(pairs["eagle3"])
    llm.engine.speculation.drafter.keeps_details = True
    rounds = rounds_of(llm)
    sampled = [SamplingParams(seed=i, max_tokens=6, ignore_eos=True) for i in range(4)]
    llm.generate(PROMPTS[:4], sampled)
    assert rounds
    for current in rounds:
        laws, tokens = current.block.laws, current.block.token_ids.flatten()
        assert (laws.of(torch.arange(len(tokens)), tokens) > 0).all()
