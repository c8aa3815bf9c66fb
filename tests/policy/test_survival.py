from __future__ import annotations

import itertools

import pytest
import torch

from adaverify.policy import admit, survival, valid_prefix

NAN = float("nan")


def test_running_product_up_to_the_drafts_there_are() -> None:
    confidences = torch.tensor([[0.5, 0.5, 0.5], [0.9, 0.8, 0.7], [1.0, 1.0, 1.0]])
    expected = torch.tensor([[0.5, 0.25, 0.125], [0.9, 0.72, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(survival(confidences, torch.tensor([3, 2, 0])), expected)


@pytest.mark.parametrize("bad", [NAN, float("inf"), float("-inf")])
def test_a_bad_confidence_ends_the_prefix(bad: float) -> None:
    confidences = torch.tensor([[0.5, bad, 0.5], [bad, 0.5, 0.5], [0.5, 0.5, bad], [0.5, 0.5, bad]])
    drafts = torch.tensor([3, 3, 2, 3])
    assert valid_prefix(confidences, drafts).tolist() == [1, 0, 2, 2]
    expected = torch.tensor([[0.5, 0, 0], [0, 0, 0], [0.5, 0.25, 0], [0.5, 0.25, 0]])
    torch.testing.assert_close(survival(confidences, drafts), expected)


def reference_admit(scores: torch.Tensor, num_valid: torch.Tensor, budget: int) -> list[int]:
    slots = [
        (-scores[row, position].item(), position, row)
        for row, position in itertools.product(range(scores.shape[0]), range(scores.shape[1]))
        if position < num_valid[row]
    ]
    winners = sorted(slots)[:budget]
    return [sum(row == winner[2] for winner in winners) for row in range(scores.shape[0])]


@pytest.mark.parametrize("seed", range(8))
def test_admits_the_best_by_survival_then_position_then_row(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    R, K = 7, 4
    # Few distinct confidences, among them 1 and 0, make many ties.
    levels = torch.tensor([0.0, 0.5, 1.0, 1.0])
    scores = levels[torch.randint(0, 4, (R, K), generator=generator)].cumprod(dim=1)
    num_valid = torch.randint(0, K + 1, (R,), generator=generator)
    for budget in range(R * K + 2):
        admitted = admit(scores, num_valid, torch.tensor(budget))
        assert admitted.tolist() == reference_admit(scores, num_valid, budget)
        assert admitted.sum() == min(budget, int(num_valid.sum()))
        assert admitted.dtype == torch.int64


def test_ties_go_to_the_lower_position_of_every_row_first() -> None:
    scores = torch.full((2, 3), 0.8)
    admitted = [admit(scores, torch.tensor([3, 3]), torch.tensor(budget)).tolist() for budget in range(7)]
    assert admitted == [[0, 0], [1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]


def test_a_rising_score_counts_as_its_running_minimum() -> None:
    scores = torch.tensor([[0.3, 0.9], [0.5, 0.4]])
    admitted = [admit(scores, torch.tensor([2, 2]), torch.tensor(budget)).tolist() for budget in range(1, 5)]
    assert admitted == [[0, 1], [0, 2], [1, 2], [2, 2]]


def test_a_nan_takes_nobody_elses_budget() -> None:
    scores = torch.tensor([[NAN, NAN], [0.5, 0.4]])
    assert admit(scores, torch.tensor([2, 2]), torch.tensor(2)).tolist() == [0, 2]


def test_no_request_and_negative_budget() -> None:
    assert admit(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), torch.tensor(4)).tolist() == []
    assert admit(torch.ones(1, 3), torch.tensor([3]), torch.tensor(-1)).tolist() == [0]
