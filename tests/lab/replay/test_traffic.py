from __future__ import annotations

import numpy as np
import pytest

from adaverify.errors import ConfigError
from adaverify.lab.replay import Rounds, Traffic
from lab.replay.small import Block, rounds_of


@pytest.fixture
def rounds() -> Rounds:
    """Requests of 3, 1, 2 and 1 rounds; round numbers 0-2, 3, 4-5, 6."""
    blocks = [Block("+", request=r, step=s) for r, length in enumerate((3, 1, 2, 1)) for s in range(length)]
    return rounds_of(*blocks)


def test_a_seat_plays_one_request_after_another_and_the_batch_drains(rounds: Rounds) -> None:
    traffic = Traffic.build(rounds, 2)
    assert traffic.rounds.tolist() == [[0, 3], [1, 4], [2, 5], [6, -1]]
    assert traffic.started.tolist() == [[True, True], [False, True], [False, False], [True, False]]
    assert traffic.num_rounds == len(rounds)


def test_rounds_are_used_again_to_keep_every_seat_taken(rounds: Rounds) -> None:
    traffic = Traffic.build(rounds, 2, num_rounds=9)
    assert traffic.rounds.tolist() == [[0, 3], [1, 4], [2, 5], [6, 0], [3, 1]]
    assert traffic.started[3:].tolist() == [[True, True], [True, False]]


def test_a_seed_shuffles_requests_but_not_their_rounds(rounds: Rounds) -> None:
    played = [Traffic.build(rounds, 1, seed=seed).rounds[:, 0] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(played[0], played[1])
    assert played[0].tolist() != played[2].tolist()
    for order in played:
        assert sorted(order) == list(range(7))
        assert np.flatnonzero(order == 1) == np.flatnonzero(order == 0) + 1


def test_a_seat_that_closes_gives_up_its_request_and_opens_with_a_new_one(rounds: Rounds) -> None:
    traffic = Traffic.build(rounds, 2, active=np.array([1, 2, 2, 1, 2]))
    assert (traffic.rounds >= 0).sum(axis=1).tolist() == [1, 2, 2, 1, 2]
    assert traffic.rounds.tolist() == [[0, -1], [1, 3], [2, 4], [6, -1], [0, 3]]
    assert traffic.started[:, 1].tolist() == [False, True, True, False, True]


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"concurrency": 5}, "4 requests cannot fill 5 seats.*--rounds"),
        ({"concurrency": 0}, "at least 1"),
        ({"concurrency": 2, "num_rounds": 0}, "at least 1"),
        ({"concurrency": 2, "active": np.array([1, 3])}, "1 to 2 open seats"),
        ({"concurrency": 2, "active": np.array([1, 0])}, "1 to 2 open seats"),
        ({"concurrency": 2, "active": np.array([1]), "num_rounds": 4}, "not both"),
    ],
)
def test_a_load_that_cannot_be_played_is_refused(rounds: Rounds, load: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Traffic.build(rounds, **load)


def test_more_seats_than_requests_are_filled_with_requests_used_again(rounds: Rounds) -> None:
    assert (Traffic.build(rounds, 5, num_rounds=10).rounds >= 0).all()
