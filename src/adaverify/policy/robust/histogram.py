"""Labels as counts: what a fit needs to know of any number of drafts, in constant memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Axis:
    """Bins of one feature, all of one width; the first and the last take what lies beyond.

    Attributes
    ----------
    first : float
        Lower edge of the first bin.
    width : float
    num_bins : int
    """

    first: float
    width: float
    num_bins: int

    def bins(self, feature: Tensor) -> Tensor:
        """Bin of each value, int64."""
        return ((feature - self.first) / self.width).long().clamp(0, self.num_bins - 1)


# Half a unit of log-odds at the usual slope is a sixteenth of a probability; means within bins do the rest.
LOG_ODDS = Axis(first=-6.0, width=0.5, num_bins=40)
# what is left of a coupled draft's margin once the log-odds are known: coarse bins
COARSE_LOG_ODDS, MARGIN = Axis(first=-5.0, width=1.0, num_bins=20), Axis(first=0.0, width=0.5, num_bins=12)


class LabelHistogram:
    """Counts of labels by group, horizon, position and features, forgotten exponentially.

    Memory is O(K): nothing grows with the traffic.

    Parameters
    ----------
    num_groups, num_positions : int
    horizons : tuple of float
        Labels of a group after which an older one weighs 1/e, one for each of H memories.
    axes : tuple of Axis
        One for each of the first features; together they make B bins.
    num_features : int
        F; those without an axis must follow from the others.
    device : torch.device or str

    Attributes
    ----------
    sums : Tensor, shape [2 + F, G, H, K, B], float64
        Forgotten numbers of labels and of accepted drafts, and sums of each feature.
    """

    def __init__(
        self,
        num_groups: int,
        num_positions: int,
        horizons: tuple[float, ...],
        axes: tuple[Axis, ...],
        num_features: int,
        device: torch.device | str,
    ) -> None:
        self.axes = axes
        self.horizons = torch.tensor(horizons, dtype=torch.float64, device=device)
        num_bins = math.prod(axis.num_bins for axis in axes)
        shape = (2 + num_features, num_groups, len(horizons), num_positions, num_bins)
        self.sums = torch.zeros(shape, dtype=torch.float64, device=device)

    @property
    def counts(self) -> Tensor:
        """Forgotten number of labels, shape [G, H, K, B]."""
        return self.sums[0]

    @property
    def accepted(self) -> Tensor:
        """Forgotten number of accepted drafts, shape [G, H, K, B]."""
        return self.sums[1]

    @property
    def means(self) -> Tensor:
        """Mean features of each bin, shape [G, H, K, B, F]; 0 where it is empty."""
        return (self.sums[2:] / self.counts.clamp(min=1e-9)).movedim(0, -1)

    def add(self, features: Tensor, labelled: Tensor, accepted: Tensor, group: Tensor) -> None:
        """Forget a little and take in the labels of one step.

        Parameters
        ----------
        features : Tensor, shape [R, K, F], floating
            Finite wherever there is a label.
        labelled, accepted : Tensor, shape [R, K], bool
        group : Tensor, shape [R], int64
        """
        G, _, K, B = self.counts.shape
        finite = torch.where(labelled[..., None], features, 0.0).double().movedim(-1, 0)
        cell = group[:, None] * K + torch.arange(K, device=features.device)
        for axis, feature in zip(self.axes, finite[: len(self.axes)], strict=True):
            cell = cell * axis.num_bins + axis.bins(feature)
        weight = labelled.double()
        values = torch.cat((torch.stack((weight, weight * accepted)), weight * finite)).flatten(1)
        new = self.sums.new_zeros(len(values), G * K * B).index_add_(1, cell.reshape(-1), values)
        new = new.view(len(values), G, 1, K, B)
        kept = torch.exp(-new[0].sum(dim=(-1, -2)) / self.horizons)
        self.sums.mul_(kept[None, :, :, None, None]).add_(new)
