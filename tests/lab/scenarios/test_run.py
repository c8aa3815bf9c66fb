"""What estimators make of scenarios, in small."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from adaverify.lab.replay import Prices, replay
from adaverify.lab.replay.policies import ESTIMATORS, Learned, Ranked, Setting
from adaverify.lab.scenarios import CATALOGUE, Course, Outcome, Phase, Scenario, make_play, run
from adaverify.lab.scenarios.offline import fit_phases, offline, oracle, with_fit
from adaverify.lab.scenarios.watched import Watched
from adaverify.policy import OnlineAcceptanceEstimator
from adaverify.policy.requests import RequestRows

OTHERS = [mode for mode in ESTIMATORS if mode != "paper"]


def shortened(name: str, num_steps: int) -> Scenario:
    """With a last phase of so many steps."""
    scenario = CATALOGUE[name]
    return replace(scenario, phases=(*scenario.phases[:-1], replace(scenario.phases[-1], num_steps=num_steps)))


def only(outcome: Outcome) -> Course:
    (course,) = outcome.estimators
    return course


def test_the_offline_fit_of_a_known_law_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    # requests that are all alike: the law is then exactly of the form that is fitted
    monkeypatch.setattr("adaverify.lab.scenarios.play._DATASETS", np.zeros((1, 2)))
    monkeypatch.setattr("adaverify.lab.scenarios.play._OWN_DEVIATION", 0.0)
    scenario = Scenario("known", "", (Phase("one", 600),), CATALOGUE["all-accepted"].costs)
    (law,) = fit_phases(make_play(scenario, 0).rounds, scenario)
    true = scenario.phases[0].law
    assert law.slopes[0] == pytest.approx(true.slope, abs=0.02)
    np.testing.assert_allclose(law.intercepts, true.intercept + true.deeper * np.arange(7), atol=0.15)
    outcome = run(scenario, [0], modes=[])
    for course in (outcome.offline, outcome.oracle):
        told = course.calibration.of_phase(0)
        assert told["labels"] > 10_000
        assert told["ece"] <= 1.3 * told["ece_of_calibrated"]
    # K + 1 coefficients know all that there is to know
    assert outcome.offline.relative_to(outcome.oracle, outcome.measured)[0] > 0.995


def test_no_fit_beats_the_oracle() -> None:
    for name in ("mixed-greedy", "penalties-tenant", "wrong-costs"):
        outcome = run(shortened(name, 200), [0], modes=["paper"])
        for course in (outcome.offline, *outcome.estimators):
            assert course.relative_to(outcome.oracle, outcome.measured)[0] < 1


def test_the_papers_estimator_dies_of_a_stretch_where_everything_is_accepted() -> None:
    outcome = run(shortened("all-accepted", 600), [0, 1], modes=["paper"])
    paper = only(outcome)
    assert (outcome.shares(paper)[:, 1:] < 0.75).all(), "from the first refit on ordinary traffic to the end"
    assert outcome.refits_to_recover(paper) == [None, None]
    assert outcome.longest_low(paper)[0] >= 5


def test_the_papers_estimator_is_well_on_ordinary_traffic() -> None:
    scenario = Scenario("plain", "", (Phase("ordinary", 600),), CATALOGUE["all-accepted"].costs)
    outcome = run(scenario, [0], modes=["paper"])
    assert outcome.refits_to_recover(only(outcome))[0] <= 2
    assert outcome.longest_low(only(outcome)) == [0]


@pytest.mark.parametrize("mode", OTHERS)
def test_others_recover_from_it_within_5_refits(mode: str) -> None:
    outcome = run(shortened("all-accepted", 700), [0], modes=[mode])
    (refits,) = outcome.refits_to_recover(only(outcome))
    assert refits is not None
    assert refits <= 5


@pytest.mark.slow
@pytest.mark.parametrize("mode", OTHERS)
@pytest.mark.parametrize("name", CATALOGUE)
def test_no_scenario_leaves_others_ill_for_more_than_10_refits(name: str, mode: str) -> None:
    outcome = run(CATALOGUE[name], [0], modes=[mode])
    assert max(outcome.longest_low(only(outcome))) <= 10


def test_tokens_are_those_that_verification_yields_on_average() -> None:
    play = make_play(shortened("mixed-greedy", 1000), 0)
    costs = CATALOGUE["mixed-greedy"].costs
    setting = Setting(play.rounds, Prices.of(costs, play.rounds, 32), 32)
    policy = Watched(oracle(setting), play.rounds)
    drawn = replay(play.rounds, policy, costs, traffic=play.traffic).total.tokens
    assert np.concatenate(policy.tokens).sum() == pytest.approx(drawn, rel=0.005)
    assert np.concatenate(policy.tokens).sum() != drawn


def test_estimators_decide_by_the_wrong_costs_and_pay_the_true_ones() -> None:
    right = replace(shortened("wrong-costs", 200), believed=None)
    wrong, true = (run(scenario, [0], modes=["paper"]) for scenario in (shortened("wrong-costs", 200), right))
    np.testing.assert_array_equal(wrong.oracle.tokens, true.oracle.tokens)
    for believes, knows in ((wrong.offline, true.offline), (only(wrong), only(true))):
        assert (believes.tokens > knows.tokens).all(), "drafts that look cheap are verified"
        assert believes.rate(wrong.measured)[0] < knows.rate(true.measured)[0]


def test_a_phase_without_a_fit_of_its_own_has_that_of_the_next() -> None:
    scenario = CATALOGUE["slow-drift"]
    first, *others = scenario.phases
    scenario = replace(scenario, phases=(replace(first, measured=False), *others))
    before, middle, late = fit_phases(make_play(scenario, 0).rounds, scenario)
    assert before is middle
    assert late.intercepts[0] < middle.intercepts[0]


def test_labels_that_tell_nothing_are_not_fitted() -> None:
    scenario = shortened("penalties-tenant", 400)
    play = make_play(scenario, 0)
    (law,) = fit_phases(play.rounds, scenario)
    everything = replace(play.rounds.blocks, telling=np.ones(len(play.rounds), bool))
    (with_tenant,) = fit_phases(replace(play.rounds, blocks=everything), scenario)
    assert law.intercepts[0] > with_tenant.intercepts[0] + 0.3


class Noting(OnlineAcceptanceEstimator):
    """Writes down what it is told of requests."""

    steps_ahead = 1

    def __init__(self, K: int) -> None:
        super().__init__(K)
        self.started: list[list[int]] = []
        self.greedy: list[Tensor] = []

    def start(self, slots: Tensor) -> None:
        self.started.append(slots.tolist())

    def expected(self, greedy: Tensor) -> Tensor:
        return torch.where(greedy[:, None], 0.25, 0.5).expand(-1, self.num_speculative_tokens)

    def predict(self, features: Tensor, requests: RequestRows | None = None) -> Tensor:
        assert requests is not None
        assert requests.slot.tolist() == list(range(len(features)))
        self.greedy.append(requests.greedy)
        return super().predict(features)


def test_an_estimator_is_told_of_seats_starts_and_greedy_requests() -> None:
    scenario = replace(CATALOGUE["mixed-greedy"], phases=(Phase("one", 100, seats=3),), mean_rounds=10.0)
    play = make_play(scenario, 0)
    setting = Setting(play.rounds, Prices.of(scenario.costs, play.rounds, 3), 3)
    noting = Noting(7)
    replay(play.rounds, Ranked("noting", Learned(noting), setting), scenario.costs, traffic=play.traffic)
    assert noting.started == [np.flatnonzero(row).tolist() for row in play.traffic.started]
    temperature = play.rounds.blocks.temperature[play.traffic.rounds]
    np.testing.assert_array_equal(torch.stack(noting.greedy).numpy(), temperature == 0)


def test_a_new_request_counts_as_what_its_estimator_expects() -> None:
    scenario = replace(CATALOGUE["burst"], phases=(Phase("one", 100, seats=64),), mean_rounds=1e9)
    play = make_play(scenario, 0)
    setting = Setting(play.rounds, Prices.of(scenario.costs, play.rounds, 64), 64)

    def first_budget(estimator: OnlineAcceptanceEstimator) -> int:
        policy = Ranked("some", Learned(estimator), setting)
        return int(replay(play.rounds, policy, scenario.costs, traffic=play.traffic).steps.budget[0])

    certain, expected = first_budget(OnlineAcceptanceEstimator(7)), first_budget(Noting(7))
    assert certain == 64 * 7
    assert expected == 64, "one draft each pays by a chance of .5, and no second one"


def test_the_offline_fit_reads_its_own_laws() -> None:
    scenario = shortened("starved", 200)
    play = make_play(scenario, 0)
    laws = fit_phases(play.rounds, scenario)
    rounds = with_fit(play.rounds, laws)
    setting = Setting(rounds, Prices.of(scenario.costs, rounds, 64), 64)
    for row in (5, len(rounds) - 5):
        expected = laws[rounds.blocks.dataset[row]].log_odds(rounds.blocks.logit_q_max[row], np.arange(7))
        np.testing.assert_allclose(rounds.blocks.head_logit[row], expected, rtol=1e-5)
    played = replay(rounds, offline(setting), scenario.costs, traffic=play.traffic)
    assert (played.policy, played.attainable) == ("offline", True)
