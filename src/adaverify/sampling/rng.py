"""Counter-based randomness: every draw is a pure function of (seed, purpose, position, depth).

Nothing is ever advanced, so a request's draws cannot depend on what else is in the batch, on how many drafts were
trimmed, or on the order in which rows are processed.

What a draw must be keyed by follows from exactness:

* ``ACCEPT`` and ``TARGET`` draws take effect at most once per absolute position: the first rejection emits the token of
  its position, and draws behind it decide nothing. The position alone is enough.
* ``DRAFT`` draws take effect more than once. A draft behind a rejection is thrown away, yet its distribution and those
  that follow it have already shaped the stale survivals that set the next draft budget. Drawing that position again
  with the same noise would tie the new draft to the budget that decides whether it is verified, which biases the
  output. Each later round starts further on, so the pair (position, depth within the draft block) never repeats.
* ``COUPLED`` keys the noise that drafter and target share (:mod:`~adaverify.sampling.noise`). The text is a function of
  the target's laws and that noise alone, so a position's noise may be looked at any number of times.

Source of the generator: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class Purpose(IntEnum):
    """What a draw is for; draws of different purposes are independent."""

    DRAFT = 1
    ACCEPT = 2
    TARGET = 3
    COUPLED = 4


def philox4x32(counter: Tensor, key: Tensor) -> Tensor:
    """Philox4x32-10, elementwise over any number of counters.

    Parameters
    ----------
    counter : Tensor [4, ...] int64
        Four 32-bit words each.
    key : Tensor [2, ...] int64
        Two 32-bit words each; the trailing shape equals that of ``counter`` or is broadcast against it.

    Returns
    -------
    Tensor [4, ...] int64
        Four independent uniform 32-bit words each.
    """
    trailing = (1,) * (counter.dim() - 1)
    multipliers = counter.new_tensor(_MULTIPLIERS).view(2, *trailing)
    weyl = counter.new_tensor(_WEYL).view(2, *trailing)
    even, odd = counter[0::2], counter[1::2]
    for _ in range(_ROUNDS):
        # The low 64 bits of the product are exact: int64 wraps, and the mask undoes the sign of the shift.
        product = even * multipliers
        high, low = (product >> 32) & _MASK32, product & _MASK32
        even, odd = high.flip(0) ^ odd ^ key, low.flip(0)
        key = (key + weyl) & _MASK32
    return torch.stack((even[0], odd[0], even[1], odd[1]))


def uniforms(seeds: Tensor, purpose: Purpose, positions: Tensor, depths: Tensor | None = None) -> Tensor:
    """Uniform numbers keyed by (seed, absolute position, purpose, depth).

    Parameters
    ----------
    seeds : Tensor [R] int64
        One per request.
    purpose : Purpose
        What the numbers are for.
    positions : Tensor [R, M] int64
        Absolute positions (prompt and output counted from 0) of the tokens concerned.
    depths : Tensor [R, M] int64, optional
        Place within the draft block, for ``Purpose.DRAFT``; 0 by default.

    Returns
    -------
    Tensor [R, M] float64
        In [0, 1), with 53 random bits.
    """
    words = _words(seeds, purpose, positions, depths)
    return ((words[0] << 21) | (words[1] >> 11)).to(torch.float64) * 2.0**-53


def uniform_words(seeds: Tensor, purpose: Purpose, positions: Tensor) -> Tensor:
    """Uniform 64-bit words [R, M] int64, keyed as in :func:`uniforms`."""
    words = _words(seeds, purpose, positions)
    return (words[0] << 32) | words[1]


def _words(seeds: Tensor, purpose: Purpose, positions: Tensor, depths: Tensor | None = None) -> Tensor:
    depths = torch.zeros_like(positions) if depths is None else depths.expand_as(positions)
    counter = torch.stack((positions & _MASK32, positions >> 32, torch.full_like(positions, int(purpose)), depths))
    key = torch.stack((seeds & _MASK32, (seeds >> 32) & _MASK32)).unsqueeze(-1)
    return philox4x32(counter, key)


def derive_seed(seed: int, index: int, prompt_token_ids: Sequence[int]) -> int:
    """Seed of the ``index``-th completion of a prompt.

    Clients give many prompts one seed. The prompt takes part in the key, since requests of one batch must not share
    noise: which drafts of one are verified depends on the drafts of the others, and would tell its own draws.

    Parameters
    ----------
    seed : int
        The request's seed, a signed 64-bit integer.
    index : int
        0 or more.
    prompt_token_ids : sequence of int

    Returns
    -------
    int
        A signed 64-bit integer; streams of different ``(seed, index, prompt)`` are unrelated.
    """
    key = struct.pack("<qq", seed, index) + array("q", prompt_token_ids).tobytes()
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
