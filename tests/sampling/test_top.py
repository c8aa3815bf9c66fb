"""The largest entries of a row, found through the maxima of blocks."""

from __future__ import annotations

import pytest
import torch

from adaverify.sampling.top import largest


@pytest.mark.parametrize("size", [7, 256, 4096, 49157])
@pytest.mark.parametrize("width", [1, 5, 200, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_they_are_those_of_topk(size, width, dtype):
    values = torch.randn(5, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    width = min(width, size)
    top, index = largest(values, width)
    assert torch.equal(top, values.topk(width).values)
    assert torch.equal(values.gather(-1, index), top)
    assert all(len(row.unique()) == width for row in index)


def test_entries_of_the_tail_and_of_one_block_are_found():
    values = torch.zeros(2, 8003)
    values[0, 8000:] = torch.tensor([3.0, 2.0, 1.0])
    values[1, torch.arange(8) * 1000 + 5] = torch.arange(1.0, 9.0)  # all in one block
    top, index = largest(values, 8)
    assert index[0, :3].tolist() == [8000, 8001, 8002]
    assert index[1].tolist() == [7005 - 1000 * i for i in range(8)]
    assert top[1].tolist() == [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]


def test_nan_comes_first_as_with_topk():
    values = torch.randn(2, 9000)
    values[0, 77] = torch.nan
    assert largest(values, 3)[0][0, 0].isnan()
    assert largest(values, 3)[1][0, 0] == 77
