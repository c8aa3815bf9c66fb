"""From logits to the law that is sampled from: temperature, min-p, top-k, top-p; and drawing from it.

Target and drafter share these functions, so that q is exactly the law the drafts were drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adaverify.sampling.kept import has_top_k, keep_most_likely_
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.top import SLICE_ELEMENTS, most_likely
from adaverify.slices import row_slices

_BLOCK = 256
# A drafter knows less than the target, so its law is the flatter one; raised to this power it overlaps more with the
# target's, by 6 to 9% with EAGLE-3 and DFlash at temperature 1. At half of that there is nothing left to gain.
DRAFT_SHARPNESS = 1.3
_TEMPERATURE_WITHOUT_GAIN = 0.5
# Colder than this, logits would overflow when divided; hotter, forbidden ones would give -inf / inf.
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-6, 1e30


@dataclass(frozen=True)
class SamplingTensors:
    """Sampling parameters of a step's requests, one entry per request.

    The rows of greedy requests are neutral (temperature 1, no filters): their token is an argmax, and the drafter's
    distribution is read at temperature 1.

    Attributes
    ----------
    temperature : Tensor [R] float32
    top_k : Tensor [R] int64
        0 keeps all.
    top_p : Tensor [R] float64
    min_p : Tensor [R] float64
    seeds : Tensor [R] int64
    greedy : Tensor [R] bool
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    greedy: Tensor

    @classmethod
    def from_params(
        cls, params: Sequence[SamplingParams], seeds: Sequence[int], device: torch.device | str
    ) -> SamplingTensors:
        """Gather the parameters of ``R`` requests on ``device``."""
        greedy = [p.is_greedy for p in params]

        def column(name: str, neutral: float, dtype: torch.dtype) -> Tensor:
            values = [neutral if p.is_greedy else getattr(p, name) for p in params]
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            temperature=column("temperature", 1.0, torch.float32),
            top_k=column("top_k", 0, torch.int64).clamp_(min=0),
            top_p=column("top_p", 1.0, torch.float64),
            min_p=column("min_p", 0.0, torch.float64),
            seeds=torch.tensor(seeds, dtype=torch.int64, device=device),
            greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
        )

    def repeat(self, times: int) -> SamplingTensors:
        """Each request's parameters ``times`` over, [R * times]."""
        columns = (self.temperature, self.top_k, self.top_p, self.min_p, self.seeds, self.greedy)
        return SamplingTensors(*(column.repeat_interleave(times) for column in columns))


def filtered_probabilities(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Distribution after temperature, min-p, top-k and top-p, renormalised.

    Each filter keeps the most likely tokens down to a threshold, and *everything tied with the threshold is kept*:
    top-k may keep more than k tokens and top-p more than the smallest nucleus, but the result depends neither on the
    order of a sort nor on the rest of the batch. Top-p measures mass relative to what min-p and top-k left.

    Parameters
    ----------
    logits : Tensor [N, V] float
        N at least 1; computed with in float32, and not changed.
    temperature : Tensor [N] float
        More than 0.
    top_k : Tensor [N] int64
        0 or less keeps all.
    top_p, min_p : Tensor [N] float
        In (0, 1] and [0, 1].

    Returns
    -------
    Tensor [N, V] float32
        Rows sum to 1; rows of non-finite logits contain NaN.
    """
    vocab = logits.shape[-1]
    filtered = has_top_k(top_k, vocab) | (top_p < 1) | (min_p > 0)
    # One transfer to the host.
    num_scaled, num_filtered = torch.stack(((temperature != 1).sum(), filtered.sum())).tolist()

    if num_scaled:
        scale = temperature.clamp(_MIN_TEMPERATURE, _MAX_TEMPERATURE).unsqueeze(-1)
    probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    for part in row_slices(logits, SLICE_ELEMENTS):
        scaled = logits[part] / scale[part] if num_scaled else logits[part]
        torch.softmax(scaled, dim=-1, dtype=torch.float32, out=probs[part])
        if num_filtered == len(logits):
            keep_most_likely_(probs[part], top_k[part], top_p[part], min_p[part])
    if 0 < num_filtered < len(logits):
        rows = filtered.nonzero().squeeze(-1)
        probs[rows] = keep_most_likely_(probs[rows], top_k[rows], top_p[rows], min_p[rows])
    return probs


def sample_from(probs: Tensor, u: Tensor) -> Tensor:
    """Draw one token per row by inverting the distribution function.

    The token is the first whose cumulative weight, over token ids in order, exceeds ``u`` times the row's total. Sums
    run over blocks first, then inside the one block that holds the answer, in float64.

    Parameters
    ----------
    probs : Tensor [N, V] float32
        Weights, 0 or more; need not sum to 1.
    u : Tensor [N] float64
        In [0, 1].

    Returns
    -------
    Tensor [N] int64
        Never a token of weight 0, unless the row has no positive weight or is not finite (then any token).
    """
    vocab = probs.shape[-1]
    tail = vocab % _BLOCK
    blocks = probs[:, : vocab - tail].reshape(len(probs), vocab // _BLOCK, _BLOCK).sum(dim=-1)
    if tail:
        blocks = torch.cat((blocks, probs[:, vocab - tail :].sum(dim=-1, keepdim=True)), dim=-1)
    block, u = _invert(blocks, u)
    tokens = block.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=probs.device)
    inside = probs.gather(-1, tokens.clamp(max=vocab - 1)).masked_fill_(tokens >= vocab, 0.0)
    offset, _ = _invert(inside, u)
    return (block * _BLOCK + offset).clamp_(max=vocab - 1)


def _invert(weights: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the positive weight in which the share ``u`` falls, and how far into it, in [0, 1]."""
    weights = weights.to(torch.float64)
    upper = weights.cumsum(dim=-1)
    # A parallel prefix sum may step up by rounding at a weight of zero: only positive ones are candidates.
    candidate = torch.where(weights > 0, upper, -1.0)
    target = torch.minimum(u * upper[:, -1], candidate.amax(dim=-1).nextafter(u.new_zeros(1)))
    index = (candidate > target.unsqueeze(-1)).to(torch.uint8).argmax(dim=-1)
    at = index.unsqueeze(-1)
    weight = weights.gather(-1, at).squeeze(-1)
    into = (target - upper.gather(-1, at).squeeze(-1) + weight) / weight
    return index, into.clamp(0.0, 1.0)


def draft_temperature(temperature: Tensor) -> Tensor:
    """Temperature at which drafts are drawn for requests of ``temperature`` [R]: any law of the drafts is exact."""
    hot = ((temperature - _TEMPERATURE_WITHOUT_GAIN) / (1 - _TEMPERATURE_WITHOUT_GAIN)).clamp(0.0, 1.0)
    return temperature / (1 + (DRAFT_SHARPNESS - 1) * hot)


def draw_drafts(logits: Tensor, sampling: SamplingTensors, u: Tensor) -> tuple[Tensor, Tensor]:
    """Draw one draft token per request, a little colder than asked, and give the law it was drawn from.

    Parameters
    ----------
    logits : Tensor [R, V] float
        Of the drafter, over the target's vocabulary.
    sampling : SamplingTensors
        Greedy requests take the most likely token.
    u : Tensor [R] float64
        ``uniforms(seeds, Purpose.DRAFT, positions, depths)`` of this depth.

    Returns
    -------
    tokens : Tensor [R] int64
    q : Tensor [R, V] float32
        The law of each sampled row. Verification never reads the rows of greedy requests: they hold the drafter's
        distribution, or zeros that take no memory where all requests are greedy.
    """
    if bool(sampling.greedy.all()):
        return most_likely(logits)[1], torch.zeros(1, device=logits.device).expand_as(logits)
    colder = draft_temperature(sampling.temperature)
    q = filtered_probabilities(logits, colder, sampling.top_k, sampling.top_p, sampling.min_p)
    tokens = sample_from(q, u)
    if bool(sampling.greedy.any()):
        tokens = torch.where(sampling.greedy, most_likely(logits)[1], tokens)
    return tokens, q
