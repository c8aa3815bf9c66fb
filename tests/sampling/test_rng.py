from __future__ import annotations

import pytest
import torch
from scipy import stats

from adaverify.sampling.rng import Purpose, derive_seed, philox4x32, uniforms

# From the known-answer file of the Random123 library: counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(*texts: str) -> torch.Tensor:
    return torch.tensor([[int(word, 16) for word in text.split()] for text in texts]).T


def test_philox_matches_the_published_vectors_in_one_batch():
    counters, keys, expected = zip(*KNOWN_ANSWERS, strict=True)
    assert torch.equal(philox4x32(words(*counters), words(*keys)), words(*expected))


def test_uniforms_are_the_first_53_bits_of_the_generator():
    seed, position, depth = 0x123456789ABCDEF0 - (1 << 63), (7 << 32) | 5, 3
    counter = torch.tensor([[5], [7], [int(Purpose.DRAFT)], [depth]])
    key = torch.tensor([[seed & 0xFFFFFFFF], [(seed >> 32) & 0xFFFFFFFF]])
    high, low = philox4x32(counter, key)[:2].flatten().tolist()
    u = uniforms(torch.tensor([seed]), Purpose.DRAFT, torch.tensor([[position]]), torch.tensor([[depth]]))
    assert u.dtype == torch.float64
    assert u.item() == ((high << 32 | low) >> 11) / 2**53


def test_uniforms_are_uniform_and_uncorrelated():
    seeds = torch.arange(-100, 100)
    u = uniforms(seeds, Purpose.TARGET, torch.arange(500).expand(200, -1))
    assert (u >= 0).all()
    assert (u < 1).all()
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3
    pairs = torch.histogramdd(torch.stack((u[:, :-1].flatten(), u[:, 1:].flatten()), -1), bins=[8, 8])
    assert stats.chisquare(pairs.hist.flatten().numpy()).pvalue > 1e-3
    assert u.flatten().unique().numel() == u.numel()


def test_a_row_depends_on_nothing_but_its_own_key():
    seeds = torch.tensor([3, -9, 3, 2**40])
    positions = torch.tensor([[4, 5], [4, 9], [4, 5], [0, 1]])
    together = uniforms(seeds, Purpose.ACCEPT, positions)
    for r in range(4):
        for i in range(2):
            alone = uniforms(seeds[r : r + 1], Purpose.ACCEPT, positions[r : r + 1, i : i + 1])
            assert alone.item() == together[r, i].item()
    assert torch.equal(together[0], together[2])


@pytest.mark.parametrize("part", ["seed", "high seed", "purpose", "position", "high position", "depth"])
def test_every_part_of_the_key_counts(part):
    def draw(seed=1, purpose=Purpose.DRAFT, position=10, depth=0):
        return uniforms(torch.tensor([seed]), purpose, torch.tensor([[position]]), torch.tensor([[depth]])).item()

    changed = {
        "seed": {"seed": 2},
        "high seed": {"seed": 1 | 1 << 40},
        "purpose": {"purpose": Purpose.ACCEPT},
        "position": {"position": 11},
        "high position": {"position": 10 | 1 << 40},
        "depth": {"depth": 1},
    }
    assert draw() == draw()
    assert draw() != draw(**changed[part])


def test_no_positions_give_no_numbers():
    assert uniforms(torch.tensor([1, 2]), Purpose.ACCEPT, torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0)


def test_derived_seeds_are_64_bit_reproducible_and_distinct():
    user_seeds = (-(2**63), -1, 0, 1, 2**63 - 1)
    seeds = [derive_seed(s, index, prompt) for s in user_seeds for index in range(10) for prompt in ([1, 2], [2, 1])]
    assert len(set(seeds)) == 100
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert min(seeds) < -(2**61)
    assert max(seeds) > 2**61
    assert derive_seed(5, 7, [1]) == derive_seed(5, 7, [1])
