from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaverify.lab.plan import AV, Lengths, Prediction, SourcedCosts, advice, make_plan
from adaverify.lab.replay import Traffic, replay
from adaverify.policy.cost import CostCurve, CostTable
from lab import synthetic
from lab.plan.made_up import COSTS, plan_of
from lab.replay.small import Block, rounds_of, synthetic_rounds

# free to verify, nearly free to draft
FREE = replace(COSTS, costs=CostTable(CostCurve((1,), (10.0,)), CostCurve((1,), (0.01,))))
# every token costs what the first one does
LINEAR = replace(COSTS, costs=CostTable(CostCurve((1, 101), (10.0, 1010.0)), CostCurve((1,), (40.0,))))


def test_lengths_are_read_off_the_contexts_of_first_and_last_rounds() -> None:
    # contexts 10 throughout: prompts of 9 that gave one token; the last rounds add 2 + 1 and 0 + 1
    lengths = Lengths.recorded(rounds_of(Block("++-", request=0), Block("-..", request=1)))
    assert lengths == Lengths(9.0, (10 + 3 - 9 + 10 + 1 - 9) / 2)
    assert lengths.changed(output_len=7) == Lengths(9.0, 7)


def test_a_request_takes_its_rounds_and_its_prompt() -> None:
    # one user: 10 ms a round of one token; 5 prompt tokens alone take 10 + 4 * 10 ms and give the first of 11 tokens
    rounds = synthetic_rounds(num_steps=40)
    result = replay(rounds, "fixed:0", LINEAR.costs, traffic=Traffic.build(rounds, 1, 0, 40))
    alone = Prediction.of("k0", result, LINEAR.costs, Lengths(5, 11))
    assert alone.decoding.tokens_per_second == pytest.approx(100.0)
    assert alone.prefill_ms == pytest.approx(50.0)
    assert alone.tokens_per_second == pytest.approx(11 / 0.150)
    # of many, a prompt adds to a step that is there anyway
    many = replay(rounds, "fixed:0", synthetic.COSTS, traffic=Traffic.build(rounds, 8, 0, 80))
    assert Prediction.of("k0", many, synthetic.COSTS, Lengths(8, 11)).prefill_ms == pytest.approx(11 - (10 + 7 / 15))


def test_a_decoding_batch_pays_for_the_prompts_it_reads() -> None:
    # no drafts, a millisecond a token: a request of 21 tokens takes 20 rounds of 10 / 4 ms, and 30 ms for its prompt
    rounds = synthetic_rounds(num_steps=40)
    costs = CostTable(CostCurve((1, 4, 5), (10.0, 10.0, 11.0)))
    lengths = Lengths(30, 21)
    traffic = Traffic.build(rounds, 4, 0, 800)
    traffic = replace(traffic, prompts=lengths.prompts(rounds, traffic))
    result = replay(rounds, "fixed:0", costs, traffic=traffic)
    found = Prediction.of("k0", result, costs, lengths)
    assert found.decode_tokens_per_second == pytest.approx(400.0)
    assert found.prefill_ms == pytest.approx(30.0)
    assert found.tokens_per_second == pytest.approx(21 / 0.080)
    assert found.to_dict()["step_ms"] == pytest.approx(10 + found.decoding.prompt_tokens / found.decoding.num_steps)


def test_prompts_are_as_recorded_scaled_and_one_for_each_answer() -> None:
    blocks = [Block("+", request=r, step=r) for r in range(2)]
    rounds = rounds_of(*blocks)
    rounds = replace(rounds, blocks=replace(rounds.blocks, context=np.array([11, 31])))
    traffic = Traffic.build(rounds, 8, 0, 8000)
    prompts = Lengths(40, 51).prompts(rounds, traffic)
    assert prompts is not None
    assert set(prompts.lengths) == {20, 60}
    assert (prompts.due <= 8000).sum() == pytest.approx(160, rel=0.2)
    assert prompts.most == 1024 - 8
    # where more than that can come in a step, all of it is read
    crowded = Lengths(400, 11).prompts(rounds, traffic)
    assert crowded is not None
    assert crowded.most == max(1016, 8 * 2 / 10 * 400)
    alone = Traffic.build(rounds, 1, 0, 80)
    for lengths, load in ((Lengths(40, 51), alone), (Lengths(0, 51), traffic), (Lengths(40, 1), traffic)):
        assert lengths.prompts(rounds, load) is None


def test_adaptive_verification_does_not_fall_behind_for_the_prompts_that_others_send() -> None:
    # free up to 40 tokens, all drafts of 8 requests; beside a prompt each token costs
    knee = replace(COSTS, costs=CostTable(CostCurve((1, 40, 41), (10.0, 10.0, 10.4)), CostCurve((1,), (0.01,))))
    plan = make_plan(synthetic_rounds(num_steps=60), knee, [8], Lengths(60, 41), num_rounds=800)
    assert plan.relative(AV, 8) > 1.0
    assert all(one.decoding.prompt_tokens for one in plan.predictions)


def test_every_arm_at_every_load_after_the_same_warm_up() -> None:
    told = []
    rounds = synthetic_rounds(num_steps=40)
    plan = make_plan(
        rounds, FREE, [1, 4], Lengths(0, 20), num_rounds=80, progress=lambda load, arm: told.append((load, arm))
    )
    arms = ["k0", "k1", "k2", "k3", "k4", AV]
    assert (plan.arms, plan.loads) == (arms, [1, 4])
    assert told == [(load, arm) for load in (1, 4) for arm in arms]
    assert {(one.concurrency, one.decoding.rounds) for one in plan.predictions} == {(1, 60), (4, 60)}
    # nothing is dear: all is drafted and verified, with adaptive verification too
    assert plan.best_fixed(4) == plan.one_fixed == "k4"
    assert plan.relative(AV, 4) == pytest.approx(1.0)
    assert plan.rates["k4", 4] > 1.5 * plan.rates["k0", 4]


def test_rounds_are_used_again_to_fill_the_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaverify.lab.plan.plan.LEAST_STEPS", 16)
    rounds = synthetic_rounds(num_steps=20, num_requests=2)
    (first, *_) = make_plan(rounds, FREE, [8], Lengths(0, 20)).predictions
    assert (first.decoding.num_steps, first.decoding.rounds) == (12, 12 * 8)


def test_the_depth_to_set_is_the_best_over_all_loads() -> None:
    plan = plan_of({"k0": (90, 400, 1000), "k1": (100, 500, 900), "k3": (120, 510, 500), AV: (118, 540, 1010)})
    assert [plan.best_fixed(load) for load in plan.loads] == ["k3", "k3", "k0"]
    assert plan.one_fixed == "k1"
    assert plan.relative(AV, 1) == pytest.approx(118 / 120)
    assert advice(plan) == (
        "AV is worth it here: 1.13x of K = 1, the best single setting, over these loads (1.08x at 8, 1.18x at 1). "
        "Without AV set K = 1; were it set for each load, K = 3 at 1, K = 1 at 8, no speculation at 64."
    )


@pytest.mark.parametrize(
    ("av", "says"),
    [(101.0, "AV makes no difference here: 1.01x of K = 1."), (90.0, "AV is not worth it here: 0.90x of K = 1.")],
)
def test_advice_is_against_it_where_it_brings_nothing(av: float, says: str) -> None:
    plan = plan_of({"k0": (50,), "k1": (100,), AV: (av,)}, loads=(8,))
    assert advice(plan) == f"{says} Without AV set K = 1, within 2% of the best at every load here."


def test_a_table_by_the_pass_is_for_any_depth() -> None:
    draft = CostCurve((1, 2), (1.0, 3.0))
    costs = SourcedCosts(CostTable(FREE.costs.verify, draft), "chip", "roofline", "a chip", per_pass=True)
    chain = costs.for_drafter(4, in_parallel=False)
    assert (chain.draft, chain.draft_first) == (CostCurve((1, 2), (4.0, 12.0)), draft)
    assert costs.for_drafter(4, in_parallel=True) == costs.costs
    assert replace(costs, per_pass=False).for_drafter(4, in_parallel=False) == costs.costs
