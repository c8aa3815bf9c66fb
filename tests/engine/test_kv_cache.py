from __future__ import annotations

import pytest
import torch

from adaverify.engine.kv_cache import LayerShape, PagedKV

SHAPES = {0: LayerShape(2, 4, 3), 5: LayerShape(1, 8, 8)}
CPU = torch.device("cpu")


def store(num_blocks: int = 4, block_size: int = 3) -> PagedKV:
    return PagedKV(SHAPES, num_blocks, block_size, torch.float32, CPU)


def test_bytes_per_token_count_all_layers_keys_and_values():
    per_token = 2 * (4 + 3) + 1 * (8 + 8)
    assert PagedKV.bytes_per_token(SHAPES, torch.bfloat16) == per_token * 2
    kv = store()
    assert sum(kv.layer(i).slots[0].nbytes for i in SHAPES) == PagedKV.bytes_per_token(SHAPES, torch.float32)


def test_what_is_written_is_read_through_the_block_table():
    layer = store().layer(0)
    key, value = torch.randn(2, 4, 4), torch.randn(2, 4, 3)
    assert layer.write(torch.tensor([9, 10, 11, 4]), key, value).isfinite().all()
    keys, values = layer.read(torch.tensor([[3, 1], [1, 0]]))
    assert keys.shape == (2, 2, 6, 4)
    assert values.shape == (2, 2, 6, 3)
    torch.testing.assert_close(keys[0][:, [0, 1, 2, 4]], key, rtol=0, atol=0)
    torch.testing.assert_close(values[0][:, [0, 1, 2, 4]], value, rtol=0, atol=0)
    torch.testing.assert_close(keys[1][:, 1], key[:, 3], rtol=0, atol=0)
    untouched = keys[0][:, [3, 5]]
    assert not untouched.any()


def test_writing_again_replaces():
    layer = store().layer(0)
    slot = torch.tensor([5])
    layer.write(slot, torch.ones(2, 1, 4), torch.ones(2, 1, 3))
    layer.write(slot, torch.full((2, 1, 4), 2.0), torch.full((2, 1, 3), 3.0))
    assert layer.slots[5, 0].tolist() == [2.0] * 4 + [3.0] * 3


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_stored_as_zero(bad):
    layer = store().layer(0)
    key, value = torch.ones(2, 2, 4), torch.ones(2, 2, 3)
    key[0, 1, 2] = value[1, 0, 0] = bad
    assert layer.write(torch.tensor([4, 7]), key, value).isfinite().tolist() == [False, False]
    keys, values = layer.read(torch.tensor([[1, 2]]))
    assert keys[0, 0, 4].tolist() == [1.0, 1.0, 0.0, 1.0]
    assert values[0, 1, 1].tolist() == [0.0, 1.0, 1.0]
    assert layer.slots.isfinite().all()
    assert layer.slots.sum() == 2 * 2 * 7 - 2


def test_layers_have_their_own_shapes():
    kv = store()
    assert kv.layer(0).slots.shape == (12, 2, 7)
    assert kv.layer(5).slots.shape == (12, 1, 16)
