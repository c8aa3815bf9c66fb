"""The parts of a sample that are scored by themselves, and those that claims are judged on."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.evaluate.sample import Pair, Sample, one_of_each

ALL_DRAFTERS = "all drafters"

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """A part of a sample that is scored by itself.

    Attributes
    ----------
    drafter : str
        Label of a pair, or ``all drafters``.
    sampling : str
        ``all``, ``greedy`` or ``sampled``: the requests in it.
    positions : str
        ``all``, ``from 2``, or one position.
    """

    drafter: str
    sampling: str = "all"
    positions: str = "all"

    @property
    def is_one_position(self) -> bool:
        """Whether it holds a single position."""
        return self.positions.isdigit()


def judged_part(parts: Container[Part], drafter: str, positions: str = "all") -> Part:
    """What a drafter is judged by: its sampled requests, where it served greedy ones too, whose law is another."""
    sampled = Part(drafter, "sampled", positions)
    return sampled if sampled in parts else Part(drafter, "all", positions)


def pairs_behind(pairs: Sequence[Pair], drafter: str) -> list[Pair]:
    """The pair of that label; of ``all drafters`` every one."""
    return [pair for pair in pairs if drafter in (ALL_DRAFTERS, pair.label)]


class Layout:
    """Cells (pair, greedy or not, position) that partition a sample, and the parts that are made of them.

    Parameters
    ----------
    sample : Sample

    Attributes
    ----------
    cell : ndarray of int16, shape [N]
    num_cells : int
    parts : dict of Part to ndarray of bool, shape [cells]
        Parts with at least one label, the largest first.
    """

    def __init__(self, sample: Sample) -> None:
        K, greedy = sample.num_positions, sample.drafts.is_greedy
        self.cell = ((sample.pair * 2 + greedy) * K + sample.depth).astype(np.int16)
        self.num_cells = len(sample.pairs) * 2 * K
        filled = np.bincount(self.cell, minlength=self.num_cells) > 0
        pair, is_greedy, depth = (index.ravel() for index in np.indices((len(sample.pairs), 2, K)))
        drafters = {p.label: pair == number for number, p in enumerate(sample.pairs)}
        if len(one_of_each(sample.pairs)) > 1:
            drafters = {ALL_DRAFTERS: np.ones(self.num_cells, bool), **drafters}
        positions = {"all": depth >= 0, "from 2": depth >= 1, **{str(i + 1): depth == i for i in range(K)}}
        self.parts: dict[Part, Bools] = {}
        for drafter, own in drafters.items():
            samplings = {"all": own}
            if (filled & own & (is_greedy == 0)).any() and (filled & own & (is_greedy == 1)).any():
                samplings |= {"greedy": own & (is_greedy == 1), "sampled": own & (is_greedy == 0)}
            for sampling, requests in samplings.items():
                for name, where in positions.items():
                    part = Part(drafter, sampling, name)
                    # where greedy requests are mixed in, claims on positions are judged on the sampled ones
                    if (filled & requests & where).any() and (sampling != "greedy" or not part.is_one_position):
                        self.parts[part] = requests & where
