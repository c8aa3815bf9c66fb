from __future__ import annotations

import numpy as np
import pytest

from adaverify.errors import ConfigError, TraceError
from adaverify.lab.replay import Prices, Rounds, Traffic, replay
from adaverify.lab.replay.policies import Decision, Policy, Setting, Stretch, default_policies, left_out, make_policy
from adaverify.lab.trace.trace import Ints
from adaverify.policy.cost import CostCurve, CostTable
from lab import synthetic
from lab.replay.small import Block, rounds_of, synthetic_rounds

# Verification costs 10 ms and 1 ms a token from the second on; drafting one token, for one request or two, 1 ms.
COSTS = CostTable(verify=CostCurve((1, 2), (11.0, 12.0)), draft=CostCurve((1, 2), (3.0, 3.0)))


def decide(rounds: Rounds, policy: str, num_seats: int = 2) -> Decision:
    """What a policy decides for all steps of one pass."""
    setting = Setting(rounds, Prices.of(COSTS, rounds, num_seats), num_seats)
    traffic = Traffic.build(rounds, num_seats)
    return make_policy(policy, setting).decide(Stretch(rounds.blocks, traffic.rounds, traffic.started))


def test_fixed_drafts_and_verifies_the_same_for_everyone() -> None:
    rounds = rounds_of(Block("++-"), Block("-.", request=1))
    result = replay(rounds, "fixed:2", COSTS, 2)
    total = result.total
    assert (total.drafted, total.admitted, total.accepted, total.tokens) == (4, 4, 2, 4)
    # two passes, and 2 + 4 packed tokens
    assert total.cost_ms == pytest.approx(2 * 1.0 + 16.0)
    assert result.tokens_per_second == pytest.approx(4 / 0.018)


def test_fixed_pays_for_the_deepest_request_of_the_batch() -> None:
    rounds = rounds_of(Block("++-"), Block("-", request=1))
    assert decide(rounds, "fixed:3").depth.tolist() == [[3, 3]]
    assert decide(rounds, "fixed:3").admitted.tolist() == [[3, 1]]


@pytest.mark.parametrize("depth", range(5))
def test_fixed_equals_its_closed_form(depth: int) -> None:
    rounds = synthetic_rounds()
    total = replay(rounds, f"fixed:{depth}", synthetic.COSTS, 8).total
    assert total.tokens == len(rounds) + np.minimum(rounds.num_accepted, depth).sum()
    step = synthetic.COSTS.materialize(8, 40)
    ms = float(step.draft[-1, 8]) * depth / 4 + float(step.verify[8 + 8 * depth])
    assert total.cost_ms == pytest.approx(len(rounds) / 8 * ms)


def test_threshold_stops_behind_the_first_improbable_token_and_verifies_it() -> None:
    rounds = rounds_of(
        Block("++-.", q_sampled=(0.9, 0.3, 0.9, 0.9)), Block("+++-", request=1, q_sampled=(0.4, 0.5, 0.6, 0.4))
    )
    decision = decide(rounds, "threshold:0.4")
    assert decision.depth.tolist() == [[2, 4]]
    assert decision.admitted.tolist() == [[2, 4]]
    # the second pass is the last that both make
    assert replay(rounds, "threshold:0.4", COSTS, 2).total.cost_ms == pytest.approx(4 * 0.75 + 10 + 8)


def test_trimming_threshold_pays_for_the_improbable_token_but_drops_it() -> None:
    rounds = rounds_of(
        Block("++-.", q_sampled=(0.9, 0.3, 0.9, 0.9)), Block("+++-", request=1, q_sampled=(0.4, 0.5, 0.6, 0.4))
    )
    decision = decide(rounds, "threshold-trim:0.4")
    assert decision.depth.tolist() == [[2, 4]]
    assert decision.admitted.tolist() == [[1, 4]]


def test_head_stop_bounds_the_chance_of_a_rejection() -> None:
    # some rejection up to draft 1, 2, 3: .1, .19, .352 and .5, .75, .875
    rounds = rounds_of(Block("+++", head=(0.9, 0.9, 0.8)), Block("+-.", request=1, head=(0.5, 0.5, 0.5)))
    assert decide(rounds, "head-stop:0.15").admitted.tolist() == [[2, 1]]
    assert decide(rounds, "head-stop:0.6").admitted.tolist() == [[3, 2]]


def test_survival_spends_a_budget_from_the_previous_block_on_the_best_of_this_one() -> None:
    """Worked by hand: rate(B) = (2 + survivals) / (3 + 10 + 2 + B)."""
    rounds = rounds_of(
        Block("++", step=0, q_max=(0.9, 0.5)),
        Block("-.", step=1, q_max=(0.1, 0.9)),
        Block("+-", request=1, step=0, q_max=(0.8, 0.1)),
        Block("++", request=1, step=1, q_max=(0.9, 0.8)),
    )
    decision = decide(rounds, "survival")
    # New requests count as certain: all four drafts pay. Then .9, .8, .45 and .08 were the latest survivals, and
    # (2 + .9 + .8 + .45) / 18 = .2306 is more than 3.7 / 17 = .2176 and than 4.23 / 19 = .2226.
    assert decision.budget.tolist() == [4, 3]
    # of .1, .09 and .9, .72 in the second step the three best are .9, .72 and .1
    assert decision.admitted.tolist() == [[2, 2], [1, 2]]
    assert decision.depth.tolist() == [[2, 2], [2, 2]]


def test_a_drafter_that_knows_its_laws_lets_the_budget_look_at_the_present_block() -> None:
    # with .9 and .81 both drafts pay, with .05 and .0005 neither: 1.05 / 15 < 1 / 14
    blocks = [Block("++", step=0, q_max=(0.05, 0.01)), Block("++", step=1, q_max=(0.9, 0.9))]
    present = decide(rounds_of(*blocks, knows_q_before_draw=True), "survival", 1)
    assert present.budget.tolist() == [0, 2]
    stale = decide(rounds_of(*blocks), "survival", 1)
    assert stale.budget.tolist() == [2, 0]


def test_coupled_verification_lets_the_budget_look_at_the_present_block() -> None:
    blocks = [Block("++", step=0, q_max=(0.05, 0.01)), Block("++", step=1, q_max=(0.9, 0.9))]
    assert decide(rounds_of(*blocks, rejection_sample_method="coupled"), "survival", 1).budget.tolist() == [0, 2]


def test_head_and_oracle_rank_by_what_was_recorded() -> None:
    rounds = rounds_of(
        Block("+-", step=0, head=(0.9, 0.2), overlap=(0.3, 0.9)),
        Block("+-", step=0, request=1, head=(0.1, 0.2), overlap=(0.8, 0.9)),
    )
    for policy, predictions in (("head", [[0.9, 0.2], [0.1, 0.2]]), ("oracle", [[0.3, 0.9], [0.8, 0.9]])):
        np.testing.assert_allclose(decide(rounds, policy).predictions[0], predictions, rtol=1e-6)


def test_a_greedy_draft_without_overlap_is_certain_for_the_oracle() -> None:
    sampled = Block("+-", overlap=(0.3, 0.9))
    rounds = rounds_of(sampled, Block("+-", request=1, temperature=0.0), Block("-.", request=2, temperature=0.0))
    assert "oracle" in default_policies(rounds)
    assert not left_out(rounds)
    predictions = decide(rounds, "oracle", 3).predictions
    assert predictions is not None
    np.testing.assert_allclose(predictions[0], [[0.3, 0.9], [1.0, 0.0], [0.0, 0.0]], rtol=1e-6)


def test_an_oracle_that_lacks_overlaps_of_sampled_drafts_is_left_out_with_a_reason() -> None:
    rounds = rounds_of(Block("+-", overlap=(0.3, 0.9)), Block("+-", request=1))
    assert "oracle" not in default_policies(rounds)
    assert left_out(rounds) == (
        "oracle left out: the overlap is known for 50% of the drafts; record every run with --overlap, and no "
        "penalties, bias or forbidden tokens; a fit is no substitute"
    )
    assert not left_out(rounds_of(Block("+-")))


def test_a_law_that_is_not_finite_costs_the_drafts_of_its_request_only() -> None:
    clean = [Block("+++", request=r, step=s, q_max=(0.9, 0.8, 0.7)) for r in range(2) for s in range(3)]
    sick = list(clean)
    sick[1] = Block("+++", request=0, step=1, q_max=(0.9, np.nan, 0.7))
    for policy in ("survival", "estimator:paper"):
        before, after = (decide(rounds_of(*blocks), policy) for blocks in (clean, sick))
        assert after.admitted[1, 0] == 1 < before.admitted[1, 0]
        assert after.admitted[1, 1] >= before.admitted[1, 1]
        # its next budget counts on nothing from that block, but still verifies the other's drafts
        assert after.admitted[2].sum() == after.budget[2] >= 3
        np.testing.assert_array_equal(after.admitted[0], before.admitted[0])
    result = replay(rounds_of(*sick), "estimator:paper", COSTS, 2)
    assert all(np.isfinite([refit.slope, *refit.intercepts]).all() for refit in result.refits)


@pytest.mark.parametrize("policy", ["fixed:3", "threshold:0.5"])
def test_what_the_recording_could_not_verify_no_policy_can(policy: str) -> None:
    total = replay(rounds_of(Block("+..", admitted=1)), policy, COSTS, 1).total
    assert (total.drafted, total.admitted, total.accepted) == (3, 1, 1)


def test_which_policies_are_lossless_and_which_are_bounds() -> None:
    rounds = rounds_of(Block("+-", head=(0.9, 0.2), overlap=(0.3, 0.9)))
    names = [*default_policies(rounds), "threshold:0.4", "head-stop:0.4", "threshold-trim:0.4"]
    results = [replay(rounds, name, COSTS, 1) for name in names]
    assert [result.policy for result in results if not result.lossless] == ["clairvoyant", "threshold-trim:0.4"]
    assert [result.policy for result in results if not result.attainable] == ["oracle", "clairvoyant"]
    coupled = rounds_of(Block("+-"), rejection_sample_method="coupled")
    assert replay(coupled, "threshold-trim:0.4", COSTS, 1).lossless


def test_the_defaults_are_what_the_trace_allows() -> None:
    assert default_policies(rounds_of(Block("+-"))) == [
        "fixed:0",
        "fixed:1",
        "fixed:2",
        "survival",
        "estimator:paper",
        "estimator:robust",
        "clairvoyant",
    ]
    rich = default_policies(rounds_of(Block("+-", head=(0.9, 0.2), overlap=(0.3, 0.9))))
    assert {"head", "oracle"} <= set(rich)


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        ("fixd:2", ConfigError, r"no policy 'fixd:2'; choose from fixed:K \(0 to 2\), threshold:T.*clairvoyant"),
        ("survival:2", ConfigError, "no policy 'survival:2'"),
        ("threshold", ConfigError, "no policy 'threshold'"),
        ("fixed:3", ConfigError, "trace drafts 2; choose from fixed:0 to fixed:2"),
        ("fixed:-1", ConfigError, "choose from fixed:0 to fixed:2"),
        ("threshold:1.5", ConfigError, "threshold:1.5 needs a probability"),
        ("threshold:nan", ConfigError, "threshold:nan needs a probability"),
        ("estimator:best", ConfigError, "no estimator 'best'; choose from .*estimator:paper"),
        ("head", TraceError, "head needs head_logit of every draft.*for 0%"),
        ("head-stop:0.5", TraceError, "head-stop needs head_logit"),
        ("oracle", TraceError, "oracle needs overlap of every draft.*a fit is no substitute"),
    ],
)
def test_a_policy_that_cannot_be_played_is_refused(policy: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        replay(rounds_of(Block("+-")), policy, COSTS, 1)


def test_a_policy_may_believe_other_costs_than_it_is_charged() -> None:
    rounds = synthetic_rounds()
    dear = CostTable(verify=CostCurve((1, 2), (10.0, 20.0)), draft=synthetic.COSTS.draft)
    right, wrong = (replay(rounds, "survival", synthetic.COSTS, 8, decide_by=table) for table in (None, dear))
    assert wrong.total.admitted < right.total.admitted
    step = synthetic.COSTS.materialize(8, 40)
    charged = step.verify.numpy()[wrong.steps.num_requests + wrong.steps.admitted]
    np.testing.assert_allclose(wrong.steps.verify_ms, charged)


def test_an_empty_seat_has_no_drafts() -> None:
    rounds = rounds_of(Block("+-", step=0), Block("+", step=1), Block("++", request=1))
    traffic = Traffic.build(rounds, 2)
    stretch = Stretch(rounds.blocks, traffic.rounds, traffic.started)
    assert stretch.num_drafts.tolist() == [[2, 2], [1, 0]]
    assert stretch.telling.tolist() == [[True, True], [True, False]]
    assert np.isnan(stretch.feature("q_max")[1]).tolist() == [[False, True], [True, True]]


class Spy(Policy):
    """Verifies one draft of each request and keeps what it is told."""

    name = "spy"

    def __init__(self, steps_ahead: int) -> None:
        self.steps_ahead = steps_ahead
        self.told: list[Ints] = []
        self.stretches: list[Stretch] = []

    def decide(self, stretch: Stretch) -> Decision:
        self.stretches.append(stretch)
        assert len(self.told) == len(self.stretches) - 1
        one = np.minimum(stretch.num_drafts, 1)
        return Decision(stretch.num_drafts, one)

    def observe(self, stretch: Stretch, decision: Decision, accepted: Ints) -> None:
        self.told.append(accepted)


@pytest.mark.parametrize("steps_ahead", [1, 7])
def test_a_policy_is_told_of_its_own_steps_in_order_and_of_no_draft_it_did_not_verify(steps_ahead: int) -> None:
    rounds = synthetic_rounds()
    assert (rounds.num_accepted > 1).any()
    spy = Spy(steps_ahead)
    replay(rounds, spy, synthetic.COSTS, 8)
    assert {len(stretch.rounds) for stretch in spy.stretches[:-1]} == {steps_ahead}
    played = np.concatenate([stretch.rounds for stretch in spy.stretches])
    np.testing.assert_array_equal(played, Traffic.build(rounds, 8).rounds)
    np.testing.assert_array_equal(np.concatenate(spy.told), np.minimum(rounds.num_accepted[played], 1))
