from __future__ import annotations

import pytest
import torch
from scipy import stats

from adaverify.sampling.noise import BLOCK, first_times, position_keys, split_mix, times

MASK = (1 << 64) - 1


def reference(state: int, count: int) -> list[int]:
    """SplitMix64 as published, advanced step by step."""
    words = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        words.append(z ^ (z >> 31))
    return words


def keys_of(count: int, seed: int = 5) -> torch.Tensor:
    return position_keys(torch.tensor([seed]), torch.arange(count).unsqueeze(0))[0]


@pytest.mark.parametrize("state", [0, 1, -1, 0x123456789ABCDEF0, -(1 << 63)])
def test_words_are_those_of_split_mix(state):
    words = split_mix(torch.tensor(state), torch.arange(40))
    assert [word & MASK for word in words.tolist()] == reference(state & MASK, 40)


def test_keys_tell_seeds_and_positions_apart_and_nothing_else():
    seeds = torch.tensor([1, -7, 2**40])
    keys = position_keys(seeds, torch.arange(300).expand(3, -1))
    assert keys.unique().numel() == 900
    assert position_keys(seeds[1:2], torch.tensor([[17]])).item() == keys[1, 17].item()
    # all 64 bits are used
    assert ((keys.unsqueeze(-1) >> torch.arange(64)) & 1).double().mean(dim=(0, 1)).sub(0.5).abs().max() < 0.1


def test_a_time_is_a_function_of_its_key_and_token_alone():
    keys = keys_of(6)
    tokens = torch.tensor([0, 3, 255, 256, 1000, 151935])
    together = times(keys.unsqueeze(-1), tokens)
    assert together.unique().numel() == 36
    for n, key in enumerate(keys):
        for i, token in enumerate(tokens):
            assert times(key, token).item() == together[n, i].item()


def test_the_first_time_of_a_block_is_its_smallest():
    keys = keys_of(50)
    every = times(keys.unsqueeze(-1), torch.arange(3 * BLOCK)).view(50, 3, BLOCK)
    first, tokens = first_times(keys.unsqueeze(-1), torch.arange(3))
    assert torch.equal(every.amin(dim=-1), first)
    assert torch.equal(every.argmin(dim=-1) + BLOCK * torch.arange(3), tokens)


def test_times_are_exponential_for_every_token():
    keys = keys_of(4000)
    for token in (0, 17, 255, 256, 40000):
        assert stats.kstest(times(keys, torch.tensor(token)).numpy(), "expon").pvalue > 1e-3
    # along the vocabulary of one position, too
    assert stats.kstest(times(keys[0], torch.arange(50000)).numpy(), "expon").pvalue > 1e-3
    assert stats.kstest((first_times(keys, torch.tensor(7))[0] * BLOCK).numpy(), "expon").pvalue > 1e-3


@pytest.mark.parametrize("pair", [(3, 4), (3, 200), (3, 300), (0, BLOCK)])
def test_times_of_two_tokens_are_independent(pair):
    """Also within a block, whose tokens share a first time: both quantiles fill the square evenly."""
    drawn = torch.stack([times(keys_of(20000), torch.tensor(token)) for token in pair], dim=-1)
    cells = torch.histogramdd(torch.exp(-drawn), bins=[8, 8], range=[0, 1, 0, 1]).hist
    assert stats.chisquare(cells.flatten().numpy()).pvalue > 1e-3


def test_neighbouring_positions_are_independent():
    drawn = times(keys_of(20001), torch.tensor(9))
    cells = torch.histogramdd(torch.exp(-torch.stack((drawn[1:], drawn[:-1]), -1)), bins=[8, 8], range=[0, 1, 0, 1])
    assert stats.chisquare(cells.hist.flatten().numpy()).pvalue > 1e-3


def test_which_token_comes_first_is_uniform_and_says_nothing_of_the_time():
    first, tokens = first_times(keys_of(40000), torch.tensor(2))
    offsets = tokens - 2 * BLOCK
    assert stats.chisquare(offsets.bincount(minlength=BLOCK).numpy()).pvalue > 1e-3
    early = offsets[first < first.median()]
    assert stats.chisquare((early // 16).bincount(minlength=16).numpy()).pvalue > 1e-3
