"""What is drawn follows the law that is said."""

from __future__ import annotations

import numpy as np
import pytest

from adaverify.errors import ConfigError
from adaverify.lab.scenarios import CATALOGUE, Law, Phase, Play, Scenario, Tenant, choose, make_play

EASY, HARD = Law(intercept=1.0), Law(intercept=-1.0)


def scenario(*phases: Phase, tenants: tuple[Tenant, ...] = (Tenant(),), **changes: float) -> Scenario:
    costs = CATALOGUE["all-accepted"].costs
    return Scenario("test", "", phases or (Phase("one", 300, EASY),), costs, tenants=tenants, **changes)


def z_scores(play: Play) -> np.ndarray:
    """Of the accepted drafts at each position, given their true chances, among those reached and usable."""
    depth = np.arange(play.rounds.num_speculative_tokens)
    reached = (depth <= play.rounds.num_accepted[:, None]) & (depth < play.rounds.num_verified[:, None])
    chance = np.where(reached, play.rounds.blocks.overlap.astype(float), 0.0)
    accepted = (depth < play.rounds.num_accepted[:, None]).sum(axis=0)
    return (accepted - chance.sum(axis=0)) / np.sqrt((chance * (1 - chance)).sum(axis=0))


@pytest.mark.parametrize("name", ["mixed-greedy", "non-finite", "penalties-tenant", "slow-drift"])
def test_labels_are_drawn_by_the_chances_that_are_kept(name: str) -> None:
    assert np.abs(z_scores(make_play(CATALOGUE[name], 3))).max() < 3.5


def test_chances_are_those_of_the_law() -> None:
    play = make_play(scenario(Phase("one", 300, Law(slope=0.7, intercept=-0.4, deeper=-0.2))), 0)
    blocks = play.rounds.blocks
    chance = blocks.overlap.astype(float)
    log_odds = np.log(chance / (1 - chance)) - 0.7 * blocks.logit_q_max - (-0.4 - 0.2 * np.arange(7))
    # what is left is the request's own, the same in every draft of it
    own = log_odds[play.rounds.first].mean(axis=1)
    np.testing.assert_allclose(log_odds, own[blocks.request][:, None] + np.zeros(7), atol=0.02)
    assert 0.3 < own.std() < 0.7


def test_a_phase_changes_the_law_and_not_the_requests() -> None:
    play = make_play(scenario(Phase("easy", 200, EASY, measured=False), Phase("hard", 200, HARD)), 0)
    phase, request = play.rounds.blocks.dataset, play.rounds.blocks.request
    easy, hard = (play.rounds.blocks.overlap[phase == number].mean() for number in (0, 1))
    assert easy > hard + 0.2
    assert set(request[phase == 0]) & set(request[phase == 1])
    assert play.rounds.datasets == ("easy", "hard")


def test_a_law_moves_evenly() -> None:
    play = make_play(scenario(Phase("moves", 400, EASY, until=HARD)), 0)
    chance = play.rounds.blocks.overlap[play.traffic.rounds].mean(axis=(1, 2)).reshape(4, 100).mean(axis=1)
    assert (np.diff(chance) < -0.05).all()


def test_seats_open_and_close_with_new_requests() -> None:
    phases = Phase("few", 100, seats=2, measured=False), Phase("many", 100, seats=5), Phase("few again", 100, seats=2)
    play = make_play(scenario(*phases), 0)
    assert (play.traffic.rounds >= 0).sum(axis=1).tolist() == [2] * 100 + [5] * 100 + [2] * 100
    assert play.traffic.started[100, 2:].all()
    first = play.traffic.rounds[play.traffic.started]
    np.testing.assert_array_equal(np.sort(first), play.rounds.first)
    played = play.traffic.rounds[play.traffic.rounds >= 0]
    np.testing.assert_array_equal(np.sort(played), np.arange(len(play.rounds)))


def test_requests_last_as_long_as_said() -> None:
    play = make_play(scenario(Phase("one", 2000, EASY, seats=8), mean_rounds=20.0), 0)
    assert play.rounds.lengths.mean() == pytest.approx(20, rel=0.15)


def test_a_draft_that_is_not_finite_ends_what_can_be_verified_of_its_round_alone() -> None:
    play = make_play(CATALOGUE["non-finite"], 0)
    finite = np.isfinite(play.rounds.blocks.logit_q_max)
    np.testing.assert_array_equal(finite.cumprod(axis=1).sum(axis=1), play.rounds.num_verified)
    assert (play.rounds.num_accepted <= play.rounds.num_verified).all()
    of_request = np.bincount(play.rounds.blocks.request, ~finite.all(axis=1)) > 0
    assert 0.05 < of_request.mean() < 0.15
    values = play.rounds.blocks.logit_q_max[~finite]
    assert {str(value) for value in values} == {"nan", "inf", "-inf"}


def test_tenants_have_their_share_and_their_law() -> None:
    tenants = Tenant(0.75), Tenant(0.25, slope=0.2, intercept=-2.0, greedy=True, telling=False)
    blocks = make_play(scenario(Phase("one", 1000, EASY), mean_rounds=20.0, tenants=tenants), 0).rounds.blocks
    greedy = blocks.temperature == 0
    np.testing.assert_array_equal(greedy, ~blocks.telling)
    assert greedy.mean() == pytest.approx(0.25, abs=0.04)
    assert blocks.overlap[greedy].mean() < blocks.overlap[~greedy].mean() - 0.15


def test_the_same_seed_draws_the_same() -> None:
    drawn = [make_play(scenario(), seed).rounds for seed in (1, 1, 2)]
    np.testing.assert_array_equal(drawn[0].num_accepted, drawn[1].num_accepted)
    assert len(drawn[0]) == len(drawn[2])
    assert (drawn[0].num_accepted != drawn[2].num_accepted).any()


def test_what_makes_no_scenario_is_refused() -> None:
    with pytest.raises(ConfigError, match="phase short has 150 steps; give a multiple of 100"):
        Phase("short", 150)
    with pytest.raises(ConfigError, match="ends with a phase that is not measured"):
        scenario(Phase("one", 100, measured=False))
    with pytest.raises(ConfigError, match="no scenario flood; choose from all, all-accepted"):
        choose(["single", "flood"])
    assert [chosen.name for chosen in choose(["single", "single"])] == ["single"]
    assert len(choose(["all"])) == 11
