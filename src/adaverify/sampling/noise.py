"""The noise of coupled sampling: one exponential time per (seed, absolute position, token id), drawn only where asked.

``E(token)`` is exponential with rate 1, independent for all tokens, positions and seeds; ``-log E`` is Gumbel noise.
It is a pure function of its key, so drafter and target see the same, whatever their supports, their vocabularies, the
batch or the depth of a block. Its bits are the same on every device; the logarithm may round differently.

A token's time is made of two draws, which is what makes it cheap. The 256 tokens of a block (ids 0 to 255, and so on)
share a *first* time, which is exponential with rate 256, and a token, which is uniform, that has it. Exponential times
have no memory: each of the other 255 comes an exponential time of its own behind the first. So one draw bounds a whole
block from below, and :mod:`~adaverify.sampling.race` needs the own draws of few tokens.

Source of the generator: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014); its key is one
Philox draw for each position.
"""

from __future__ import annotations

import torch
from torch import Tensor

from adaverify.sampling.rng import Purpose, uniform_words

BLOCK = 256
# Blocks are numbered behind all token ids.
_FIRST_BLOCK = 1 << 40
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIXERS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)))
_LAST_SHIFT = 31


def position_keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """Key of the noise at each position.

    Parameters
    ----------
    seeds : Tensor [R] int64
        One per request.
    positions : Tensor [R, M] int64
        Absolute positions (prompt and output counted from 0) of the tokens to be drawn.

    Returns
    -------
    Tensor [R, M] int64
    """
    return uniform_words(seeds, Purpose.COUPLED, positions)


def first_times(keys: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """First time of each block, and the token that has it.

    Parameters
    ----------
    keys : Tensor [...] int64
        See :func:`position_keys`.
    blocks : Tensor [...] int64
        Block ``b`` holds the tokens from ``b * BLOCK`` on.

    Returns
    -------
    times : Tensor [...] float64
    tokens : Tensor [...] int64
    """
    words = split_mix(keys, blocks + _FIRST_BLOCK)
    # the time takes the upper 53 bits
    return _exponential(words) / BLOCK, blocks * BLOCK + (words & (BLOCK - 1))


def times_behind(keys: Tensor, tokens: Tensor, first_tokens: Tensor) -> Tensor:
    """How long after the first time of its block each token comes, float64; 0 for the token that has it."""
    return torch.where(tokens == first_tokens, 0.0, _exponential(split_mix(keys, tokens)))


def times(keys: Tensor, tokens: Tensor) -> Tensor:
    """Time ``E`` of each token, float64, more than 0; ``keys`` and ``tokens`` are broadcast."""
    first, first_tokens = first_times(keys, tokens // BLOCK)
    return first + times_behind(keys, tokens, first_tokens)


def split_mix(keys: Tensor, index: Tensor) -> Tensor:
    """The ``index``-th 64-bit word of the SplitMix64 generator with state ``keys``, as int64."""
    word = keys + (index + 1) * _GOLDEN_GAMMA
    for shift, multiplier in _MIXERS:
        word = (word ^ _shift_right(word, shift)) * multiplier
    return word ^ _shift_right(word, _LAST_SHIFT)


def _shift_right(word: Tensor, count: int) -> Tensor:
    """Logical shift: the sign of int64 is a bit like any other."""
    return (word >> count) & ((1 << (64 - count)) - 1)


def _exponential(words: Tensor) -> Tensor:
    """Exponential of rate 1 from the upper 53 bits, never 0."""
    return ((_shift_right(words, 11).to(torch.float64) + 0.5) * 2.0**-53).log().neg()
