from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from adaverify.engine.attention import paged_attention
from adaverify.engine.batch import Segment, pack
from adaverify.engine.kv_cache import LayerShape, PagedKV

CPU = torch.device("cpu")
BLOCK = 4
LAYER = 3
# (context already stored, new tokens): decode, verification, chunks in the middle of a prompt, whole prompts
RAGGED = [(9, 1), (0, 1), (6, 4), (5, 13), (0, 18), (21, 3)]


def dense(query, key, value, start, scale, window, softcap, sinks):
    """Attention of one request in float64, row by row of the definition; query [H, T, Dk], key [Hkv, L, Dk]."""
    repeat = query.shape[0] // key.shape[0]
    key, value = key.double().repeat_interleave(repeat, 0), value.double().repeat_interleave(repeat, 0)
    scores = query.double() @ key.transpose(1, 2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(query.shape[1])[:, None] + start
    keys = torch.arange(key.shape[1])[None]
    hidden = (keys > at) | (keys <= at - (window if window is not None else 10**9))
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)], -1)
    weights = scores.softmax(-1)[..., : key.shape[1]]
    return weights @ value


def run(heads=(4, 2), dims=(8, 8), max_padded_query=4, poison=None, **options):
    """Run ``RAGGED`` through the paged attention; returns the result and the dense one, both [T, H, Dv]."""
    torch.manual_seed(0)
    num_heads, num_kv = heads
    total = sum(context + new for context, new in RAGGED)
    kv = PagedKV({LAYER: LayerShape(num_kv, *dims)}, 64, BLOCK, torch.float32, CPU)
    if poison is not None:
        kv.layer(LAYER).slots.fill_(poison)
    free = torch.randperm(63).add(1).tolist()
    keys, values = torch.randn(num_kv, total, dims[0]), torch.randn(num_kv, total, dims[1])
    queries = torch.randn(num_heads, total, dims[0])
    sinks = options.get("s_aux")
    segments, fresh, expected, first = [], [], [], 0
    for context, new in RAGGED:
        blocks = [free.pop() for _ in range(-(-(context + new) // BLOCK))]
        rows = slice(first, first + context + new)
        slots = torch.tensor([blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(context)], dtype=torch.long)
        kv.layer(LAYER).write(slots, keys[:, first : first + context], values[:, first : first + context])
        segments.append(Segment([0] * new, context, blocks, 1))
        fresh += range(first + context, first + context + new)
        wanted = dense(
            queries[:, first + context : first + context + new], keys[:, rows], values[:, rows], context,
            options.get("scaling") or dims[0] ** -0.5, options.get("sliding_window"), options.get("softcap"), sinks,
        )  # fmt: skip
        expected.append(wanted.transpose(0, 1))
        first += context + new
    context = pack(segments, kv, CPU, max_padded_query).context
    output, weights = paged_attention(
        SimpleNamespace(layer_idx=LAYER), queries[None, :, fresh], keys[None, :, fresh], values[None, :, fresh], None,
        paged=context, **options,
    )  # fmt: skip
    assert weights is None
    assert output.shape == (1, len(fresh), num_heads, dims[1])
    return output[0].double(), torch.cat(expected)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["MHA", "GQA", "MQA"])
@pytest.mark.parametrize("dims", [(8, 8), (8, 6)], ids=["Dk=Dv", "Dk>Dv"])
@pytest.mark.parametrize("window", [None, 3, 100])
def test_equals_dense_attention(heads, dims, window):
    actual, expected = run(heads, dims, sliding_window=window)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 5])
def test_softcap_and_sinks(softcap, with_sinks, window):
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0]) if with_sinks else None
    actual, expected = run(softcap=softcap, s_aux=sinks, sliding_window=window)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    if softcap is not None or with_sinks:
        plain, _ = run(sliding_window=window)
        assert (plain - actual).abs().max() > 0.05


@pytest.mark.parametrize("max_padded_query", [1, 3, 64])
def test_grouping_changes_nothing(max_padded_query):
    actual, expected = run(max_padded_query=max_padded_query, scaling=0.3)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_what_earlier_owners_left_in_a_block_has_no_weight():
    actual, expected = run(poison=1e4, sliding_window=5)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_one_decode_equals_torch_sdpa():
    """The reference above against an independent one, where the fused kernel's arguments suffice."""
    torch.manual_seed(1)
    query, key, value = torch.randn(4, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    fused = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True, enable_gqa=True)[0]
    torch.testing.assert_close(dense(query, key, value, 0, 8**-0.5, None, None, None).float(), fused)
