"""The true chance that each draft is accepted, for the lab: it costs a pass over p and q that serving does not need."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adaverify.sampling.coupled import sharpened
from adaverify.sampling.laws import DraftLaws
from adaverify.sampling.processors import filtered_probabilities
from adaverify.sampling.request import SampleRequest


@torch.inference_mode()
def draft_overlaps(
    logits: Tensor, requests: Sequence[SampleRequest], laws: DraftLaws | None, depth: int, coupled: bool = False
) -> Tensor:
    """Chance that every draft is accepted, over the randomness of drafting and verification.

    Sum of min(p, q) = 1 - TV(p, q) with standard verification (Leviathan et al. 2023), :func:`coupled_overlap` with
    coupled verification.

    Greedy requests are left out, since their drafts are accepted or not without chance, and so are those with token
    rules.

    Parameters
    ----------
    logits : Tensor [N, V] float
        The target's logits before :func:`~adaverify.sampling.sampler.sample` has seen them.
    requests : sequence of SampleRequest
        Request ``r`` owns the next ``num_rows`` rows.
    laws : DraftLaws, optional
        None: drafts are one-hot, and the overlap is p(x).
    depth : int
        Columns of the result.
    coupled : bool

    Returns
    -------
    Tensor [R, depth] float32
        nan where there is no draft or nothing to compute.
    """
    overlaps = torch.full((len(requests), depth), torch.nan, device=logits.device)
    start = 0
    for r, request in enumerate(requests):
        count, params = len(request.draft_token_ids), request.params
        if count and not params.is_greedy and not request.has_token_rules:
            same = logits.new_full((count,), params.temperature, dtype=torch.float32)
            p = filtered_probabilities(
                logits[start : start + count].float(),
                same,
                torch.full_like(same, params.top_k, dtype=torch.long),
                torch.full_like(same, params.top_p),
                torch.full_like(same, params.min_p),
            )
            if laws is None or request.q_start is None:
                drafts = torch.tensor(request.draft_token_ids, device=logits.device)
                overlaps[r, :count] = p.gather(-1, drafts.unsqueeze(-1)).squeeze(-1)
            elif coupled:
                q = torch.zeros_like(p)
                laws.subtract_from(q, request.q_start + torch.arange(count, device=logits.device))
                overlaps[r, :count] = coupled_overlap(p, sharpened(-q))
            else:
                laws.subtract_from(p, request.q_start + torch.arange(count, device=logits.device))
                overlaps[r, :count] = (1.0 - p.clamp_(min=0.0).sum(dim=-1)).clamp(0.0, 1.0)  # rounding
        start += request.num_rows
    return overlaps


def coupled_overlap(p: Tensor, q: Tensor) -> Tensor:
    """Chance that two races with the same noise have the same winner: sum of 1 / sum_w max(p_w/p_v, q_w/q_v).

    Token v wins both races if its time is below those of all others scaled by the larger of the two ratios (Daliri,
    Musco and Suresh 2024). Tokens in order of p/q make the inner sum two partial sums.

    Parameters
    ----------
    p, q : Tensor [N, V] float32
        Weights; need not sum to 1.

    Returns
    -------
    Tensor [N] float32
    """
    # without a sign: p / -0 would come first, not last
    p, q = p.double().abs(), q.double().abs()
    order = (p / q).nan_to_num(nan=0.0, posinf=torch.inf).argsort(dim=-1)
    p, q = p.gather(-1, order), q.gather(-1, order)
    p_from = p.flip(-1).cumsum(dim=-1).flip(-1)
    q_before = q.cumsum(dim=-1) - q
    chance = 1.0 / (p_from / p + q_before / q)
    return torch.where((p > 0) & (q > 0), chance, 0.0).sum(dim=-1).float()
