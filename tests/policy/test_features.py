from __future__ import annotations

import math

import pytest
import torch

from adaverify.policy import MAX_LOG_ODDS, log_odds_of_max
from adaverify.policy.features import law_details

SEED = 0


def exact_log_odds(logits: torch.Tensor) -> torch.Tensor:
    """The definition in float64: the maximum against everything else."""
    values = logits.double()
    largest, argmax = values.max(dim=-1, keepdim=True)
    others = values.scatter(-1, argmax, float("-inf"))
    return largest.squeeze(-1) - others.logsumexp(dim=-1)


@pytest.mark.parametrize("scale", [0.01, 1.0, 5.0, 20.0])
def test_matches_float64(scale: float) -> None:
    logits = torch.randn(64, 5000, generator=torch.Generator().manual_seed(SEED)) * scale
    expected = exact_log_odds(logits).clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)
    torch.testing.assert_close(log_odds_of_max(logits).double(), expected, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("gap", [1.0, 10.0, 17.0, 25.0, 35.0])
def test_one_minus_q_max_keeps_its_relative_error_where_q_max_rounds_to_one(gap: float) -> None:
    logits = torch.full((1, 33), 50.0 - gap)
    logits[0, 7] = 50.0
    expected = 32 * math.exp(-gap)
    measured = math.exp(-log_odds_of_max(logits).item())
    assert measured == pytest.approx(expected, rel=1e-5)


def test_temperature_scales_and_zero_or_none_means_one() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(SEED)) * 3
    temperature = torch.tensor([0.0, 1.0, 0.7, 2.0])
    scores = log_odds_of_max(logits, temperature)
    torch.testing.assert_close(scores[:2], log_odds_of_max(logits[:2]))
    torch.testing.assert_close(scores[2].double(), exact_log_odds(logits[2].double() / 0.7), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores[3].double(), exact_log_odds(logits[3].double() / 2), rtol=1e-5, atol=1e-5)


def test_clamped_on_both_sides() -> None:
    certain = torch.full((1, 8), float("-inf"))
    certain[0, 3] = 0.0
    flat = torch.zeros(1, 1 << 20)
    assert log_odds_of_max(certain).item() == MAX_LOG_ODDS
    assert log_odds_of_max(torch.tensor([[100.0, 0.0]])).item() == MAX_LOG_ODDS
    assert log_odds_of_max(flat).item() == pytest.approx(-math.log((1 << 20) - 1), rel=1e-6)


def test_masked_tokens_do_not_count() -> None:
    logits = torch.tensor([[1.0, float("-inf"), 0.0], [1.0, 0.0, float("-inf")]])
    torch.testing.assert_close(log_odds_of_max(logits), torch.tensor([1.0, 1.0]))


def test_ties_at_the_top_are_all_but_one_against_it() -> None:
    assert log_odds_of_max(torch.tensor([[2.0, 2.0, 2.0]])).item() == pytest.approx(-math.log(2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_rows_give_nan_and_leave_the_others_alone(bad: float) -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0]] * 3)
    logits[1, 2] = bad
    scores = log_odds_of_max(logits)
    assert scores.isnan().tolist() == [False, True, False]


def test_nothing_finite_gives_nan() -> None:
    assert log_odds_of_max(torch.full((1, 4), float("-inf"))).isnan().item()


def test_any_leading_shape_any_float_type_and_the_input_is_kept() -> None:
    logits = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(SEED)).bfloat16()
    kept = logits.clone()
    scores = log_odds_of_max(logits, torch.ones(2, 3))
    assert scores.shape == (2, 3)
    assert scores.dtype == torch.float32
    assert torch.equal(logits, kept)
    as_float = logits.float()
    float_kept = as_float.clone()
    torch.testing.assert_close(log_odds_of_max(as_float, torch.full((2, 3), 0.5)).shape, scores.shape)
    assert torch.equal(as_float, float_kept)


def test_details_of_a_law_are_those_of_its_probabilities():
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)) * 3
    logits[1, 2:] = -torch.inf
    temperature = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0])
    drawn = torch.tensor([0, 1, 2, 3, 4])
    q = (logits / torch.where(temperature > 0, temperature, 1.0)[:, None]).softmax(-1)
    details = law_details(logits, drawn, temperature)
    torch.testing.assert_close(details.q_drawn, q[torch.arange(5), drawn])
    torch.testing.assert_close(details.entropy, torch.special.entr(q).sum(-1))
    top = q.topk(2).values.log()
    torch.testing.assert_close(details.margin, top[:, 0] - top[:, 1])


def test_details_of_a_law_with_one_token_left():
    logits = torch.full((1, 4), -torch.inf)
    logits[0, 2] = 1e4
    details = law_details(logits, torch.tensor([2]))
    assert details.q_drawn.tolist() == [1.0]
    assert details.entropy.tolist() == [0.0]
    assert details.margin.tolist() == [float("inf")]
