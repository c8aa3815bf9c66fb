"""The same number of drafts for everyone."""

from __future__ import annotations

import numpy as np

from adaverify.lab.replay.policies.base import Decision, Policy, Stretch


class Fixed(Policy):
    """Drafts ``depth`` tokens and verifies them all, as a server without adaptive verification does."""

    def __init__(self, depth: int) -> None:
        self.name = f"fixed:{depth}"
        self.depth = depth

    def decide(self, stretch: Stretch) -> Decision:
        """Draft as deep as any request of the step can use, at most ``depth``."""
        admitted = np.minimum(stretch.num_drafts, self.depth)
        return Decision(stretch.everywhere(admitted.max(axis=1)), admitted, admitted.sum(axis=1))
