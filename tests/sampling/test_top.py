"""The largest entries of a row, as torch finds them."""

from __future__ import annotations

import pytest
import torch

from adaverify.sampling import top
from adaverify.sampling.top import largest_values, most_likely


@pytest.mark.parametrize("size", [7, 256, 4096, 49157])
@pytest.mark.parametrize("width", [1, 5, 200, 1024])
def test_they_are_those_of_topk(size, width):
    values = torch.randn(5, size, generator=torch.Generator().manual_seed(1))
    before = values.clone()
    width = min(width, size)
    assert torch.equal(largest_values(values, width), values.topk(width).values)
    assert torch.equal(values, before)


def test_nan_comes_first_as_with_topk():
    values = torch.randn(2, 9000)
    values[0, 77] = torch.nan
    assert largest_values(values, 3)[0, 0].isnan()
    assert largest_values(values, 9000)[0, 0].isnan()
    assert not largest_values(values, 9000)[1].isnan().any()


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
