"""How the two parts of a step depend on its size: drafting, and the round around the target's pass."""

from __future__ import annotations

import numpy as np

from adaverify.policy.cost_filter import CostFilter, Floats
from adaverify.policy.step import StepSize

# Prior standard deviations. Of ratios to the start-up table: what all sizes share, and each size's own, which
# neighbours share, too, up to about so many doublings of the size.
COMMON, OWN, REACH = 0.5, 0.3, 3.0
# Of the round's slopes, in passes over one token: per 1000 context tokens, per 1000 query-key pairs, per request.
CONTEXT, PAIRS, REQUEST = 0.1, 0.02, 0.05
# Of the price of prompt tokens, relative to that of drafts: they need no logits.
PROMPT = 0.5
# Of drafting's slopes: per 1000 context tokens, relative; per prompt token, in 1/64 of drafting for one request; of
# what a step with drafts takes beyond them, in first drafts for one request.
DRAFT_CONTEXT, DRAFT_PROMPT, DRAFT_ROUND = 0.05, 0.5, 2.0
# no size gets cheaper than this share of its start-up cost
LOWEST_RATIO = 0.01


class Ratios:
    """Factors on a curve over sizes: one at each power of 2, between them linear in the logarithm of the size.

    Parameters
    ----------
    largest : int
        Largest size.
    """

    def __init__(self, largest: int) -> None:
        octaves = np.log2(np.maximum(np.arange(largest + 1), 1))
        self.count = max(2, int(np.ceil(octaves[-1])) + 1)
        self._below = np.minimum(octaves.astype(np.int64), self.count - 2)
        distance = np.abs(octaves[:, None] - np.arange(self.count))
        self._weights = np.maximum(1 - distance, 0.0)

    def weights(self, size: int) -> Floats:
        """What each factor counts for at ``size``, shape [count]."""
        weights: Floats = self._weights[size]
        return weights

    def table(self, coefficients: Floats) -> Floats:
        """The factor of every size from 0, which counts as 1; the first ``count`` coefficients are the factors."""
        factors: Floats = self._weights @ coefficients[: self.count]
        return factors

    def kind(self, size: int) -> int:
        """The power of 2 at or below ``size``."""
        return int(self._below[size])


def make_filter(ratios: Ratios, slopes: list[float], spreads: list[float], num_kinds: int) -> CostFilter:
    """Filter for the factors of a curve, all 1 at the start, and slopes that may not be negative."""
    octaves = np.arange(ratios.count)
    distance = np.abs(octaves[:, None] - octaves)
    covariance = np.diag(np.square(np.array([0.0] * ratios.count + spreads)))
    covariance[: ratios.count, : ratios.count] = COMMON**2 + OWN**2 * np.exp(-distance / REACH)
    start = np.array([1.0] * ratios.count + slopes)
    lowest = np.array([LOWEST_RATIO] * ratios.count + [0.0] * len(slopes))
    return CostFilter(start, covariance, lowest, num_kinds)


class RoundCosts:
    """A step without its drafting: the target's pass, sampling, verification, and all that is done once a step.

    The cost is ``r(T - P) f(T - P) + p (f(T) - f(T - P)) + c C + a A + n R`` for T packed tokens, P of them of prompts,
    R requests with C tokens of context and A query-key pairs; ``f`` is the start-up curve.

    Parameters
    ----------
    start : ndarray [max_tokens + 1], float64
        Start-up milliseconds of every number of packed tokens, positive and not falling.
    """

    def __init__(self, start: Floats) -> None:
        self._start = start
        self._sizes = np.arange(len(start))
        self._unit = float(start[1])
        self._ratios = Ratios(len(start) - 1)
        slopes, spreads = [0.0, 0.0, 0.0, 1.0], [CONTEXT, PAIRS, REQUEST, PROMPT]
        self.filter = make_filter(self._ratios, slopes, spreads, num_kinds=2 * self._ratios.count)

    def features(self, size: StepSize) -> Floats:
        """What the coefficients are multiplied with, shape [F]."""
        verified = size.packed_tokens - size.prefill_tokens
        without, unit = float(self._start[verified]), self._unit
        prompt = float(self._start[size.packed_tokens]) - without
        slopes = (unit * size.context_tokens / 1000, unit * size.pairs / 1000, unit * size.requests, prompt)
        return np.concatenate((self._ratios.weights(verified) * without, slopes))

    def kind(self, size: StepSize) -> int:
        """Steps of about the same size, with prompts and without, may be off apart from each other."""
        return 2 * self._ratios.kind(size.packed_tokens) + (size.prefill_tokens > 0)

    def table(self, size: StepSize) -> Floats:
        """Milliseconds for every number of packed tokens, shape [max_tokens + 1], not falling.

        ``size`` is that of the step without drafts; every packed token more is a draft that attends to a context of
        mean length.
        """
        context, pairs, request, prompt = self.filter.coefficients[-4:].tolist()
        costs, verified = self._ratios.table(self.filter.coefficients) * self._start, self._sizes
        if size.prefill_tokens:
            verified = np.maximum(self._sizes - size.prefill_tokens, 0)
            costs = costs[verified] + prompt * (self._start - self._start[verified])
        costs += (self._unit * pairs * size.mean_context / 1000) * verified
        attention = (pairs * size.prefill_pairs + context * size.context_tokens) / 1000
        costs += self._unit * (attention + request * size.requests)
        return np.maximum.accumulate(costs)


class DraftCosts:
    """Drafting: ``(r(R) + c C) f(depth, R) + p P + o`` for R requests with C tokens of context, P tokens to be read.

    These are the prompt chunks and, if anything is drafted, what the drafter has not read since it last drafted; ``o``
    is what the step takes besides if it drafts at all: choosing, admitting, learning. It is the same at any depth: as
    a factor it would make deeper drafts look dear.

    Parameters
    ----------
    start : ndarray [K + 1, max_requests + 1], float64
        Start-up milliseconds of every depth and number of requests.
    """

    def __init__(self, start: Floats) -> None:
        self._start = start
        self._unit = float(start[-1, 1]) / 64
        self._first = float(start[1, 1])
        self._ratios = Ratios(start.shape[-1] - 1)
        spreads = [DRAFT_CONTEXT, DRAFT_PROMPT, DRAFT_ROUND]
        self.filter = make_filter(self._ratios, [0.0] * len(spreads), spreads, num_kinds=2 * self._ratios.count)

    def startup(self, size: StepSize) -> float:
        """Milliseconds by the start-up table."""
        return float(self._start[size.depth, size.requests]) if size.requests else 0.0

    def features(self, size: StepSize) -> Floats:
        """What the coefficients are multiplied with, shape [F]."""
        cost = self.startup(size)
        read = size.prefill_tokens + (size.backlog_tokens if size.depth else 0)
        slopes = (cost * size.context_tokens / 1000, self._unit * read, self._first if cost > 0 else 0.0)
        return np.concatenate((self._ratios.weights(size.requests) * cost, slopes))

    def kind(self, size: StepSize) -> int:
        """As :meth:`RoundCosts.kind`, by requests."""
        return 2 * self._ratios.kind(size.requests) + (size.prefill_tokens > 0)

    def prompt_ms(self, size: StepSize) -> float:
        """Milliseconds for the drafter to read the prompt chunks, whatever is drafted."""
        return float(self.filter.coefficients[-2]) * self._unit * size.prefill_tokens

    def table(self, size: StepSize) -> Floats:
        """Milliseconds of every depth and number of requests, with contexts of mean length.

        Drafting to any depth first reads the backlog of ``size``.
        """
        context, prompt, round_ = self.filter.coefficients[-3:].tolist()
        contexts = np.arange(self._start.shape[-1]) * size.mean_context
        ratios = self._ratios.table(self.filter.coefficients) + (context / 1000) * contexts
        costs: Floats = np.maximum.accumulate(np.maximum.accumulate(self._start * ratios, axis=1), axis=0)
        costs[1:, 1:] += prompt * self._unit * size.backlog_tokens + round_ * self._first
        return costs
