"""Which drafts the target accepts, and the token that follows them: pure functions over one step's rows.

A request with ``n`` drafts owns ``1 + n`` consecutive rows: row ``i`` judges draft ``i``, the last one gives the bonus
token. Sources: Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (2023); Chen
et al., "Accelerating large language model decoding with speculative sampling" (2023).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaverify.sampling.laws import DraftLaws
from adaverify.sampling.processors import sample_from


class Verification(NamedTuple):
    """Outcome of one step per request.

    Attributes
    ----------
    num_accepted : Tensor [R] int64
        Length of the accepted prefix of the drafts.
    next_token : Tensor [R] int64
        The token after it; meaningless where ``failed``.
    failed : Tensor [R] bool
        Whether the row that should give the next token is bad.
    """

    num_accepted: Tensor
    next_token: Tensor
    failed: Tensor


def verify_greedy(
    target_tokens: Tensor, bad_row: Tensor, row_start: Tensor, drafts: Tensor, num_drafts: Tensor
) -> Verification:
    """Accept drafts as long as they are the target's most likely tokens.

    Parameters
    ----------
    target_tokens : Tensor [N] int64
        Most likely token of each row.
    bad_row : Tensor [N] bool
        Rows that cannot give a token; a draft there is rejected.
    row_start : Tensor [R] int64
        First row of each request.
    drafts : Tensor [R, K] int64
        Padded with any valid token id.
    num_drafts : Tensor [R] int64
        Drafts of each request, 0 to K.
    """
    rows = _draft_rows(row_start, drafts, len(target_tokens))
    accepts = (target_tokens[rows] == drafts) & ~bad_row[rows]
    num_accepted = _accepted_prefix(accepts, num_drafts)
    emitting = row_start + num_accepted
    return Verification(num_accepted, target_tokens[emitting], bad_row[emitting])


def verify_standard(
    p: Tensor,
    bad_row: Tensor,
    row_start: Tensor,
    drafts: Tensor,
    num_drafts: Tensor,
    q: Tensor | DraftLaws | None,
    q_index: Tensor,
    u_accept: Tensor,
    u_target: Tensor,
) -> Verification:
    """Accept draft x with probability min(1, p(x) / q(x)); draw what follows from the residual or, at the end, from p.

    At the first rejection the token is drawn from max(p - q, 0), normalised. A one-hot draft is accepted with
    probability p(x), and its residual is p without x. Where rounding leaves the residual without mass, or it is not
    finite, the token is drawn from p without x (from p if that has no mass either). A draft that its own law gives no
    positive finite probability says nothing: it is always rejected and the token drawn from the whole of p, which is
    exact wherever the draft came from.

    Parameters
    ----------
    p : Tensor [N, V] float32
        The target's processed distributions, one row per token.
    bad_row, row_start, drafts, num_drafts : Tensor
        As for :func:`verify_greedy`.
    q : DraftLaws or Tensor [M, V] float32, optional
        The drafter's processed distributions; None if all drafts are one-hot. Never copied as a whole.
    q_index : Tensor [R, K] int64
        Row of ``q`` that each draft was drawn from; negative for a one-hot draft.
    u_accept : Tensor [R, K] float64
        Uniform numbers that decide acceptance, by position.
    u_target : Tensor [R, K + 1] float64
        Uniform numbers for the token after ``i`` accepted drafts, by position.
    """
    laws = DraftLaws.wrap(q)
    rows = _draft_rows(row_start, drafts, len(p))
    p_draft = p[rows, drafts].to(torch.float64)
    q_draft = _draft_probabilities(laws, q_index, drafts)
    valid = q_draft.isfinite() & (q_draft > 0)
    accepts = valid & (u_accept * q_draft < p_draft) & ~bad_row[rows]
    num_accepted = _accepted_prefix(accepts, num_drafts)

    emitting = row_start + num_accepted
    failed = bad_row[emitting]
    # without drafts every row emits, and nothing is copied
    weights = p if len(p) == len(emitting) else p.index_select(0, emitting)
    if drafts.shape[1]:
        first_rejected = num_accepted.clamp(max=drafts.shape[1] - 1).unsqueeze(-1)
        rejected = (num_accepted < num_drafts) & valid.gather(-1, first_rejected).squeeze(-1) & ~failed
        requests = rejected.nonzero().squeeze(-1)
        if len(requests):
            at = first_rejected[requests]
            weights[requests] = _residual(
                weights[requests], drafts[requests].gather(-1, at), laws, q_index[requests].gather(-1, at)
            )
    u = u_target.gather(-1, num_accepted.unsqueeze(-1)).squeeze(-1)
    return Verification(num_accepted, sample_from(weights, u), failed)


def _draft_rows(row_start: Tensor, drafts: Tensor, num_rows: int) -> Tensor:
    """Row that judges each draft, [R, K]; padding points at some existing row."""
    depth = torch.arange(drafts.shape[1], device=drafts.device)
    return (row_start.unsqueeze(-1) + depth).clamp(max=num_rows - 1)


def _accepted_prefix(accepts: Tensor, num_drafts: Tensor) -> Tensor:
    depth = torch.arange(accepts.shape[1], device=accepts.device)
    return (accepts & (depth < num_drafts.unsqueeze(-1))).to(torch.int64).cumprod(dim=-1).sum(dim=-1)


def _draft_probabilities(laws: DraftLaws | None, q_index: Tensor, drafts: Tensor) -> Tensor:
    """q(x) of each draft, [R, K] float64; 1 for one-hot drafts."""
    if laws is None:
        return torch.ones_like(drafts, dtype=torch.float64)
    return torch.where(q_index >= 0, laws.of(q_index.clamp(min=0), drafts).to(torch.float64), 1.0)


def _residual(p: Tensor, draft: Tensor, laws: DraftLaws | None, q_index: Tensor) -> Tensor:
    """Unnormalised residual of rejected drafts.

    Parameters
    ----------
    p : Tensor [n, V]
    draft, q_index : Tensor [n, 1]
        The rejected tokens and the rows of their laws.
    """
    residual = p.clone()
    if laws is not None:
        drawn = (q_index.squeeze(-1) >= 0).nonzero().squeeze(-1)
        of_drawn = residual[drawn]
        laws.subtract_from(of_drawn, q_index[drawn, 0])
        residual[drawn] = of_drawn
    residual.clamp_(min=0.0).scatter_(-1, draft, 0.0)
    mass = residual.sum(dim=-1)
    unusable = (~mass.isfinite() | (mass <= 0)).nonzero().squeeze(-1)
    if len(unusable):
        others = p[unusable].scatter(-1, draft[unusable], 0.0)
        residual[unusable] = torch.where(others.sum(dim=-1, keepdim=True) > 0, others, p[unusable])
    return residual
