"""Top-p by a histogram: the same nucleus as by sorting."""

from __future__ import annotations

import pytest
import torch

from adaverify.sampling.nucleus import nucleus
from adaverify.sampling.processors import filtered_probabilities


def by_sorting(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    ordered = probs.sort(dim=-1, descending=True).values.double()
    end = (ordered.cumsum(-1) < top_p.unsqueeze(-1)).sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)
    kept = probs.double() * (probs >= ordered.gather(-1, end))
    return (kept / kept.sum(-1, keepdim=True)).float()


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("size", [1, 5, 300, 10240])
def test_it_keeps_what_sorting_keeps(size, spread):
    logits = spread * torch.randn(6, size, generator=torch.Generator().manual_seed(1))
    probs = torch.softmax(logits, dim=-1)
    top_p = torch.tensor([1e-6, 0.05, 0.5, 0.9, 0.95, 0.9999], dtype=torch.float64)
    expected = by_sorting(probs, top_p)
    result = nucleus(probs, top_p)
    assert torch.equal(result > 0, expected > 0)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


def test_what_is_tied_with_the_last_is_kept():
    probs = torch.tensor([[0.3, 0.2, 0.2, 0.2, 0.1]])
    assert nucleus(probs, torch.tensor([0.45]))[0].nonzero().squeeze(-1).tolist() == [0, 1, 2, 3]


def test_a_mass_that_rounding_leaves_below_top_p_keeps_all():
    probs = torch.full((1, 7), 1 / 7) * 0.999
    assert (nucleus(probs, torch.tensor([0.9999])) > 0).all()


def test_rows_with_wide_nuclei_are_told_by_it_and_do_not_change_with_their_neighbours():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(4, 4000, generator=generator) * torch.tensor([[0.1], [0.5], [8.0], [1.0]])
    top_p, none = torch.tensor([0.9, 0.95, 0.9, 0.5], dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    ones, top_k = torch.ones(4), torch.tensor([0, 0, 0, 700])
    together = filtered_probabilities(logits, ones, top_k, top_p, none)
    for row in range(4):
        one = slice(row, row + 1)
        alone = filtered_probabilities(logits[one], ones[one], top_k[one], top_p[one], none[one])
        assert torch.equal(alone[0], together[row])
    probs = torch.softmax(logits, dim=-1)
    torch.testing.assert_close(together[:3], by_sorting(probs, top_p)[:3], rtol=1e-6, atol=0)
