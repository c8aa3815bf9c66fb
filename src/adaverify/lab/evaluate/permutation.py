"""How often a correlation over a few groups comes about by luck: by pairing the groups' values at random."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

MAX_LUCK = 0.05
MAX_EXACT = 8
DRAWS = 10_000

Floats = NDArray[np.float64]


def luck(one: Floats, other: Floats, seed: int = 0) -> tuple[float, float]:
    """Shares of all pairings of two quantities, shape [G] each, that correlate as much, and as little, as they do.

    Exact for up to eight groups, else by 10,000 random pairings. Source: Phipson and Smyth, "Permutation p-values
    should never be zero", 2010.

    Returns
    -------
    above, below : float
        P-values of a correlation above 0 and of one below; 1 where a quantity does not vary.
    """
    one, other = one - one.mean(), other - other.mean()
    # all pairings share their standard deviations, so the sum of products orders them as the correlation does
    products = other[_pairings(len(one), seed)] @ one
    observed, rounding = other @ one, 1e-9 * np.sqrt((one @ one) * (other @ other))
    return float((products >= observed - rounding).mean()), float((products <= observed + rounding).mean())


def _pairings(num_groups: int, seed: int) -> NDArray[np.intp]:
    """Orders of the groups, shape [P, G]; as they are among them."""
    if num_groups <= MAX_EXACT:
        return np.array(list(permutations(range(num_groups))), np.intp)
    drawn = np.random.default_rng(seed).permuted(np.tile(np.arange(num_groups), (DRAWS, 1)), axis=1)
    return np.concatenate([np.arange(num_groups)[None], drawn])
