"""What a filter keeps, where the nucleus is wider than the windows looked at first."""

from __future__ import annotations

import pytest
import torch

from adaverify.sampling import kept
from adaverify.sampling.kept import keep_most_likely_
from adaverify.sampling.processors import filtered_probabilities
from adaverify.sampling.top import values_above


def top_p_by_sorting(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    ordered = probs.sort(dim=-1, descending=True).values.double()
    end = (ordered.cumsum(-1) < top_p.unsqueeze(-1)).sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)
    weights = probs.double() * (probs >= ordered.gather(-1, end))
    return (weights / weights.sum(-1, keepdim=True)).float()


def nucleus(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    none = torch.zeros(len(probs), dtype=torch.long)
    return keep_most_likely_(probs.clone(), none, top_p, none.double())


FLOORS = [(0.0,), (2e-5, 5e-7, 0.0), (0.9, 0.1, 0.0), (0.03, 0.001, 0.0)]


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("size", [1, 5, 300, 10240])
@pytest.mark.parametrize("floors", FLOORS)
def test_top_p_keeps_what_sorting_keeps(size, spread, floors, monkeypatch):
    monkeypatch.setattr(kept, "_FLOORS", floors)
    logits = spread * torch.randn(6, size, generator=torch.Generator().manual_seed(1))
    probs = torch.softmax(logits, dim=-1)
    top_p = torch.tensor([1e-6, 0.05, 0.5, 0.9, 0.95, 0.9999], dtype=torch.float64)
    expected = top_p_by_sorting(probs, top_p)
    result = nucleus(probs, top_p)
    assert torch.equal(result > 0, expected > 0)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("top_k", [0, 1, 3, 40, 299, 300])
@pytest.mark.parametrize("min_p", [0.0, 0.001, 0.3])
@pytest.mark.parametrize("floors", FLOORS[1:])
def test_no_filter_depends_on_where_the_windows_end(top_k, min_p, floors, monkeypatch):
    """Each against the same with all probabilities in one window."""
    logits = (
        torch.randn(5, 300, generator=torch.Generator().manual_seed(3)) * torch.tensor([[0.0, 0.3, 1.0, 3.0, 9.0]]).T
    )
    probs = torch.softmax(logits, dim=-1)
    settings = (
        torch.full((5,), top_k),
        torch.tensor([0.2, 0.5, 0.9, 0.99, 1.0]).double(),
        torch.full((5,), min_p).double(),
    )
    results = []
    for used in (FLOORS[0], floors):
        monkeypatch.setattr(kept, "_FLOORS", used)
        results.append(keep_most_likely_(probs.clone(), *settings))
    assert torch.equal(*results)


def test_what_is_tied_with_the_last_is_kept(monkeypatch):
    probs = torch.tensor([[0.3, 0.2, 0.2, 0.2, 0.1]])
    top_p = torch.tensor([0.45], dtype=torch.float64)
    for floors in ((0.0,), (0.15, 0.0), (0.25, 0.0), (0.5, 0.0)):
        monkeypatch.setattr(kept, "_FLOORS", floors)
        assert nucleus(probs, top_p)[0].nonzero().squeeze(-1).tolist() == [0, 1, 2, 3]


def test_a_mass_that_rounding_leaves_below_top_p_keeps_all():
    probs = torch.full((1, 7), 1 / 7) * 0.999
    assert (nucleus(probs, torch.tensor([0.9999], dtype=torch.float64)) > 0).all()


def test_a_row_is_looked_at_again_only_if_it_must(monkeypatch):
    """A peaked row is settled by its first window, flatter ones by the second and the third."""
    looked_at = []

    def spy(values, floor):
        looked_at.append((len(values), floor))
        return values_above(values, floor)

    monkeypatch.setattr(kept, "values_above", spy)
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 2_500_000, generator=generator) * torch.tensor([[6.0], [3.0], [0.1]])
    nucleus(torch.softmax(logits, -1), torch.full((3,), 0.9, dtype=torch.float64))
    assert looked_at == [(3, 2e-5), (2, 5e-7), (1, 0.0)]


def test_rows_with_wide_nuclei_do_not_change_with_their_neighbours():
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
    torch.testing.assert_close(together[:3], top_p_by_sorting(probs, top_p)[:3], rtol=1e-6, atol=0)
