"""Prompts that steps read beside what they decode."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaverify.errors import ConfigError
from adaverify.lab.replay import Prompts, Rounds, Traffic, replay
from adaverify.lab.replay.prompts import PromptReader
from adaverify.policy.cost import CostCurve, CostTable
from lab.replay.small import Block, rounds_of, synthetic_rounds

# flat up to 64 tokens, then a millisecond each
KNEE = CostTable(CostCurve((1, 64, 65), (10.0, 10.0, 11.0)), CostCurve((1,), (0.4,)))


def prompts(due: list[float], lengths: list[int], most: int = 1000) -> Prompts:
    return Prompts(np.array(due), np.array(lengths), most)


def prompted(rounds: Rounds, seats: int, count: int, queue: Prompts) -> Traffic:
    return replace(Traffic.build(rounds, seats, 0, count), prompts=queue)


def test_a_prompt_is_read_once_enough_is_decoded_and_what_a_step_cannot_read_waits() -> None:
    reading = PromptReader(prompts([2, 5, 5.5, 100], [7, 3, 20, 9], most=12)).read_beside(np.full(8, 2))
    # decoded before each step: 0, 2, 4, 6, ...
    assert reading.tokens.tolist() == [0, 7, 0, 12, 11, 0, 0, 0]
    assert reading.ended.tolist() == [0, 1, 0, 1, 1, 0, 0, 0]


def test_prompts_come_once_in_an_answer_and_last() -> None:
    queue = Prompts.draw(np.array([10, 30]), decoded=50.0, num_tokens=100_000, most=100, seed=3)
    assert (queue.due <= 100_000).sum() == pytest.approx(2000, rel=0.08)
    assert queue.due[-1] > 100_000
    assert set(queue.lengths) == {10, 30}


def test_the_charge_is_that_of_all_packed_tokens() -> None:
    # two seats; 4 and 3 tokens decoded in the first two steps
    rounds = rounds_of(
        *(Block(outcome, request=r, step=s) for r, s, outcome in ((0, 0, "+-"), (0, 1, "+-"), (0, 2, "-."))),
        *(Block(outcome, request=1, step=s) for s, outcome in enumerate(("+-", "-.", "++"))),
    )
    costs = CostTable(CostCurve((1, 101), (1.0, 101.0)), CostCurve((1,), (2.0,)))
    traffic = replace(Traffic.build(rounds, 2), prompts=prompts([4, 7], [5, 40], most=30))
    for policy, packed in (("fixed:1", 4), ("fixed:0", 2)):
        steps = replay(rounds, policy, costs, traffic=traffic).steps
        tokens = [0, 5, 30] if policy == "fixed:1" else [0, 0, 5]
        assert steps.prompt_tokens.tolist() == tokens
        np.testing.assert_allclose(steps.verify_ms, packed + np.array(tokens))
        np.testing.assert_allclose(steps.prompt_ms, tokens)


def test_an_arm_reads_a_prompt_for_each_answer_however_fast_it_decodes() -> None:
    rounds = synthetic_rounds(num_steps=100)
    queue = Prompts.draw(np.array([20]), decoded=10.0, num_tokens=20_000, most=1000, seed=0)
    slow, fast = (replay(rounds, f"fixed:{k}", KNEE, traffic=prompted(rounds, 8, 4000, queue)).total for k in (0, 4))
    assert fast.tokens > 1.5 * slow.tokens
    for total in (slow, fast):
        assert total.prompt_tokens / total.tokens == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("policy", ["av", "estimator:robust"])
def test_steps_that_read_a_prompt_verify_less_where_it_takes_the_free_room(policy: str) -> None:
    rounds = synthetic_rounds(num_steps=100)
    queue = Prompts.draw(np.array([100]), decoded=60.0, num_tokens=8000, most=1000, seed=0)
    # without a prompt all 40 tokens are free to verify
    traffic = prompted(rounds, 8, 800, queue)
    av, fixed = (replay(rounds, one, KNEE, traffic=traffic) for one in (policy, "fixed:4"))
    reads = av.steps.prompt_tokens > 0
    assert 0.1 < reads.mean() < 0.6
    assert (av.steps.admitted[~reads] == 32).all()
    # all is verified by a few probes only
    assert av.steps.admitted[reads].mean() < 26
    assert av.tokens_per_second > fixed.tokens_per_second


@pytest.mark.parametrize("policy", ["fixed:4", "estimator:robust", "survival", "av"])
def test_prompts_that_never_come_change_nothing(policy: str) -> None:
    rounds = synthetic_rounds(num_steps=20)
    without = Traffic.build(rounds, 4, 0, 120)
    plain, never = (
        replay(rounds, policy, KNEE, traffic=traffic).steps
        for traffic in (without, replace(without, prompts=prompts([1e9], [50])))
    )
    for name, values in vars(plain).items():
        np.testing.assert_allclose(getattr(never, name), values, rtol=1e-6, err_msg=name)
    assert not plain.prompt_ms.any()


def test_a_prompt_that_ends_counts_as_a_token_to_gain() -> None:
    # a draft of chance .15 takes 1 ms beside 10: 1.15 / 11 > 1 / 10; beside a prompt 2 ms: 2.15 / 22 < 2 / 20, though
    # 1.15 / 22 > 1 / 20
    rounds = rounds_of(*(Block("-", step=step, q_max=(0.15,)) for step in range(3)))
    costs = CostTable(CostCurve((1, 2, 11, 12), (10.0, 11.0, 20.0, 22.0)))
    traffic = replace(Traffic.build(rounds, 1), prompts=prompts([1.0], [10]))
    assert replay(rounds, "survival", costs, traffic=traffic).steps.admitted.tolist() == [1, 0, 1]


def test_the_clairvoyant_is_no_bound_beside_prompts() -> None:
    rounds = synthetic_rounds(num_steps=20)
    with pytest.raises(ConfigError, match=r"clairvoyant.*traffic without them"):
        replay(rounds, "clairvoyant", KNEE, traffic=prompted(rounds, 4, 40, prompts([10.0], [50])))
