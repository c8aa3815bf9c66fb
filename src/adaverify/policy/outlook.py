"""What to expect of a block that has not been drafted yet."""

from __future__ import annotations

import torch
from torch import Tensor

from adaverify.errors import ConfigError

# Blocks whose deviations are remembered, and how many are looked at for one step: in so many scenarios at most.
_REMEMBERED, _LOOKED_AT, _MOST_SCENARIOS = 256, 128, 16


class Outlook:
    """Expected confidences of the next blocks, from those of earlier ones.

    A request's last block says something of its next one, but less than it seems to: a confident block is followed by
    a more ordinary one. So the expectation at a position is ``mean + persistence * (last - mean)``, and the mean alone
    where a request has no block just behind it, or none so deep. Mean confidences by position and the one persistence
    (a least-squares slope through the origin) are learned from every block, with exponential forgetting.

    Blocks differ from what was expected of them, and those that are better than expected are verified first. So what a
    budget brings depends on how far they differ: :meth:`scenarios` adds to the expectation what recent blocks of all
    requests, the latest 256, differed by.

    Parameters
    ----------
    num_speculative_tokens : int
        K.
    device : torch.device or str
    horizon : float
        Drafts of a position after which a draft's weight has fallen to 1/e.
    prior_mean, prior_persistence : float
        Before the first block; hopeful, so that drafting is tried.
    prior_weight : float
        Drafts that the prior mean counts for.

    Attributes
    ----------
    mean : Tensor, shape [K], float64
    persistence : Tensor, 0-dim, float64

    Raises
    ------
    ConfigError
        A parameter is out of range.
    """

    def __init__(
        self,
        num_speculative_tokens: int,
        device: torch.device | str = "cpu",
        horizon: float = 2000.0,
        prior_mean: float = 0.8,
        prior_persistence: float = 0.3,
        prior_weight: float = 8.0,
    ) -> None:
        for name, value, valid in (
            ("num_speculative_tokens", num_speculative_tokens, num_speculative_tokens >= 1),
            ("horizon", horizon, horizon >= 1),
            ("prior_mean", prior_mean, 0 <= prior_mean <= 1),
            ("prior_persistence", prior_persistence, 0 <= prior_persistence <= 1),
            ("prior_weight", prior_weight, prior_weight > 0),
        ):
            if not valid:
                raise ConfigError(f"{name} is {value}, which is out of range for an outlook")
        self.horizon = horizon
        # by position: weight and weighted sum of confidences
        self._weight = torch.full((num_speculative_tokens,), prior_weight, dtype=torch.float64, device=device)
        self._sum = self._weight * prior_mean
        # a unit of squared deviation is about 20 ordinary pairs of blocks
        self._spread = torch.ones((), dtype=torch.float64, device=device)
        self._shared = self._spread * prior_persistence
        self._deviations = torch.zeros(_REMEMBERED, num_speculative_tokens, dtype=torch.float64, device=device)
        # shuffled, so that no request always meets what the same seat left
        shuffle = torch.Generator().manual_seed(0)
        self._order = torch.randperm(_REMEMBERED, generator=shuffle).to(device)
        self._next_deviation = self._next_scenario = 0

    @property
    def mean(self) -> Tensor:
        """Mean confidence by position [K]."""
        return self._sum / self._weight

    @property
    def persistence(self) -> Tensor:
        """How much of a block's deviation from the mean its successor keeps, 0 to 1."""
        return (self._shared / self._spread).clamp(0, 1)

    def expect(self, last: Tensor) -> Tensor:
        """Expected confidences [R, K] after the last blocks' confidences [R, K], nan where there is none."""
        mean = self.mean
        return torch.where(last.isnan(), mean, mean + self.persistence * (last - mean)).clamp(0, 1)

    def scenarios(self, last: Tensor) -> Tensor:
        """Confidences [S, R, K] that the next blocks may have after ``last`` [R, K], S times; their mean is expected.

        All but clipping at 0 and 1 leaves the mean as :meth:`expect` has it. S falls with R: many requests show the
        whole spread at once.
        """
        R = len(last)
        S = min(_MOST_SCENARIOS, max(1, _LOOKED_AT // max(1, R)))
        places = (torch.arange(S * R, device=last.device) + self._next_scenario) % _REMEMBERED
        self._next_scenario = (self._next_scenario + S * R + 1) % _REMEMBERED
        deviations = self._deviations - self._deviations.mean(dim=0)
        return (self.expect(last) + deviations[self._order[places]].view(S, *last.shape)).clamp(0, 1)

    def observe(self, last: Tensor, confidences: Tensor, drafted: Tensor) -> None:
        """Learn from blocks just drafted.

        Parameters
        ----------
        last : Tensor, shape [R, K]
            What :meth:`expect` was given before them.
        confidences : Tensor, shape [R, K]
            What is not finite says nothing of other requests' blocks; where all are, drafting is hopeless.
        drafted : Tensor, shape [R, K], bool
            Drafts that were made and can be used.
        """
        sound = drafted & confidences.isfinite()
        drafted = torch.where(sound.any(dim=0), sound, drafted)
        values = torch.where(sound, confidences, 0.0).double()
        mean = self.mean
        self._remember(torch.where(sound, values - self.expect(last), 0.0))
        pairs = drafted & ~last.isnan()
        before, after = (torch.where(pairs, rows.double() - mean, 0.0) for rows in (last, values))
        counts = drafted.sum(dim=0)
        kept = (-counts / self.horizon).exp()
        self._weight = self._weight * kept + counts
        self._sum = self._sum * kept + values.sum(dim=0)
        kept = (-pairs.sum() / (self.horizon * len(mean))).exp()
        self._spread = self._spread * kept + (before * before).sum()
        self._shared = self._shared * kept + (before * after).sum()

    def _remember(self, deviations: Tensor) -> None:
        """Put deviations [R, K], 0 where nothing is known, in the place of the oldest."""
        deviations = deviations[-_REMEMBERED:]
        rows = (torch.arange(len(deviations), device=deviations.device) + self._next_deviation) % _REMEMBERED
        self._deviations[rows] = deviations
        self._next_deviation = (self._next_deviation + len(deviations)) % _REMEMBERED
