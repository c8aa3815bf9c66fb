"""Labels as counts: what a fit needs to know of any number of drafts, in constant memory."""

from __future__ import annotations

import torch
from torch import Tensor

# Half a unit of log-odds at the usual slope is an eighth of a probability at most; means within bins do the rest.
FIRST_EDGE, WIDTH, NUM_BINS = -6.0, 0.5, 40


class LabelHistogram:
    """Counts of labels by group, horizon, position and feature, forgotten exponentially.

    Memory is O(K): nothing grows with the traffic.

    Parameters
    ----------
    num_groups, num_positions : int
    horizons : tuple of float
        Labels of a group after which an older one weighs 1/e, one for each of H memories.
    device : torch.device or str

    Attributes
    ----------
    counts, accepted, scores : Tensor, shape [G, H, K, B], float64
        Forgotten numbers of labels, of accepted drafts, and sums of features.
    """

    def __init__(
        self, num_groups: int, num_positions: int, horizons: tuple[float, ...], device: torch.device | str
    ) -> None:
        self.horizons = torch.tensor(horizons, dtype=torch.float64, device=device)
        shape = (3, num_groups, len(horizons), num_positions, NUM_BINS)
        self._sums = torch.zeros(shape, dtype=torch.float64, device=device)

    @property
    def sums(self) -> Tensor:
        """Counts, accepted drafts and features in one tensor, shape [3, G, H, K, B]."""
        return self._sums

    @property
    def counts(self) -> Tensor:
        """Forgotten number of labels, shape [G, H, K, B]."""
        return self._sums[0]

    @property
    def accepted(self) -> Tensor:
        """Forgotten number of accepted drafts, shape [G, H, K, B]."""
        return self._sums[1]

    @property
    def means(self) -> Tensor:
        """Mean feature of each bin, shape [G, H, K, B]; 0 where it is empty."""
        return self._sums[2] / self._sums[0].clamp(min=1e-9)

    def add(self, features: Tensor, labelled: Tensor, accepted: Tensor, group: Tensor) -> None:
        """Forget a little and take in the labels of one step.

        Parameters
        ----------
        features : Tensor, shape [R, K], floating
            Finite wherever there is a label.
        labelled, accepted : Tensor, shape [R, K], bool
        group : Tensor, shape [R], int64
        """
        _, G, _, K, B = self._sums.shape
        finite = torch.where(labelled, features, 0.0).double()
        bins = ((finite - FIRST_EDGE) / WIDTH).long().clamp(0, B - 1)
        cell = ((group[:, None] * K + torch.arange(K, device=features.device)) * B + bins).reshape(-1)
        weight = labelled.double()
        values = torch.stack((weight, weight * accepted, weight * finite)).reshape(3, -1)
        new = self._sums.new_zeros(3, G * K * B).index_add_(1, cell, values).view(3, G, 1, K, B)
        kept = torch.exp(-new[0].sum(dim=(-1, -2)) / self.horizons)
        self._sums.mul_(kept[None, :, :, None, None]).add_(new)
