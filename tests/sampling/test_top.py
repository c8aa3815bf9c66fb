"""The largest entries of a row, as torch finds them."""

from __future__ import annotations

import pytest
import torch

from adaverify.sampling import top
from adaverify.sampling.top import most_likely, values_above


@pytest.mark.parametrize("size", [7, 256, 4096, 49157])
@pytest.mark.parametrize("floor", [0.0, 0.5, 2.0, 9.0])
def test_values_above_are_the_sorted_ones_above(size, floor):
    values = (4 * torch.randn(5, size, generator=torch.Generator().manual_seed(1))).round() / 4
    before = values.clone()
    top, counts = values_above(values, floor)
    assert counts.tolist() == (values > floor).sum(-1).tolist()
    assert top.shape == (5, max(1, int(counts.max())))
    for row, found, count in zip(values, top, counts.tolist(), strict=True):
        assert torch.equal(found[:count], row[row > floor].sort(descending=True).values)
        assert not found[count:].any()
    assert torch.equal(values, before)


def test_nan_is_not_above_anything():
    values = torch.rand(2, 9000)
    values[0, 77] = torch.nan
    top, counts = values_above(values, 0.0)
    assert counts.tolist() == [8999, 9000]
    assert not top.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("slice_elements", [1, 700, 1 << 20])
def test_the_most_likely_entry_is_the_first_of_the_largest(dtype, slice_elements, monkeypatch):
    monkeypatch.setattr(top, "SLICE_ELEMENTS", slice_elements)
    logits = torch.randint(0, 40, (9, 300), generator=torch.Generator().manual_seed(2)).to(dtype)
    best, index = most_likely(logits)
    assert torch.equal(best, logits.amax(-1).float())
    assert index.tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_a_row_with_nan_has_no_most_likely_entry():
    logits = torch.randn(3, 50)
    logits[1, 20], logits[2, 5] = torch.nan, torch.inf
    best, index = most_likely(logits)
    assert best[0].isfinite()
    assert best[1].isnan()
    assert best[2].isinf()
    assert index[2] == 5
