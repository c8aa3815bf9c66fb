"""Rules by which a request stops drafting on its own, whatever the batch and the costs."""

from __future__ import annotations

import numpy as np

from adaverify.lab.replay.policies.base import Decision, Policy, Stretch
from adaverify.lab.trace.trace import Bools, Floats


class Stopping(Policy):
    """Drafts until a draft tells it to stop; what would have followed is neither drafted nor verified."""

    verifies_last = True

    def decide(self, stretch: Stretch) -> Decision:
        """Stop behind the first draft that :meth:`stops` marks."""
        stops = self.stops(stretch)
        until = np.where(stops.any(axis=-1), stops.argmax(axis=-1) + 1, stops.shape[-1])
        depth = np.minimum(until, stretch.num_drafts)
        if self.verifies_last:
            return Decision(depth, depth)
        return Decision(depth, np.where(stops.any(axis=-1), np.minimum(until - 1, depth), depth))

    def stops(self, stretch: Stretch) -> Bools:
        """Drafts [T, N, K] behind which drafting ends."""
        raise NotImplementedError


class Threshold(Stopping):
    """Stops behind a drawn token of probability below ``threshold`` under the drafter.

    The doubtful token is still verified, as in Draft & Verify (arXiv 2309.08168): whether a draft is verified then
    depends on tokens before it alone, and the text keeps the target's distribution. Threshold tuning is left out.
    """

    def __init__(self, threshold: float) -> None:
        self.name = f"threshold:{threshold:g}"
        self.threshold = threshold

    def stops(self, stretch: Stretch) -> Bools:
        """Improbable tokens; a law that is not finite counts as one."""
        return np.asarray(~(stretch.feature("q_sampled") >= self.threshold))


class TrimmedThreshold(Threshold):
    """As :class:`Threshold`, but the doubtful token itself is dropped.

    Whether a draft is verified then depends on that draft, which biases the text: with p = (.5, .5), q = (.2, .8) and
    threshold .5 the output is (.4, .6).
    """

    lossless = False
    verifies_last = False

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold)
        self.name = f"threshold-trim:{threshold:g}"


class HeadStop(Stopping):
    """Stops behind the first draft with ``1 - product of confidences up to it > threshold``.

    The rule of SpecDec++ (arXiv 2405.19715), with the confidences of the drafter's own head. The head reads nothing of
    the token it is confident of, so the text keeps the target's distribution.
    """

    def __init__(self, threshold: float) -> None:
        self.name = f"head-stop:{threshold:g}"
        self.threshold = threshold

    def stops(self, stretch: Stretch) -> Bools:
        """Drafts up to which some rejection is too likely."""
        confidences = _sigmoid(stretch.feature("head_logit"))
        return np.asarray(~(1 - confidences.cumprod(axis=-1) <= self.threshold))


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)))
