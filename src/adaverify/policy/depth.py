"""How deep to draft: the depth and the budget of a batch together, and when to end a block early."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from adaverify.policy.budget import cost_of_prompts
from adaverify.policy.cost import MaterializedCosts


class DepthChoice(NamedTuple):
    """What :func:`choose_depth` chose; every field 0-dim.

    Attributes
    ----------
    depth, budget : Tensor, int64
        Drafts to make for each request, and to verify for the whole batch; both 0 where drafting does not pay.
    rate : Tensor, float64
        Expected tokens per millisecond of ``cost``: the going rate.
    cost : Tensor, float64
        Expected milliseconds of the step, without the reading of prompts.
    undrafted_cost : Tensor, float64
        The same of a step that drafts nothing.
    """

    depth: Tensor
    budget: Tensor
    rate: Tensor
    cost: Tensor
    undrafted_cost: Tensor


def choose_depth(
    expected_survival: Tensor,
    num_sampling: Tensor,
    num_requests: Tensor,
    num_non_draft: Tensor,
    costs: MaterializedCosts,
    max_budget: Tensor,
) -> DepthChoice:
    """Choose depth D and budget B with the most expected tokens per millisecond.

    ``tokens(D, B) = num_sampling + sum of the B largest survivals among the first D of each request``, in the mean over
    scenarios, and ``cost(D, B) = draft[D, num_requests] + verify[num_non_draft + B] - reading``; the ratio is searched
    over all pairs at once, and the prompts' ``reading`` is :func:`~adaverify.policy.budget.cost_of_prompts`. At each
    depth, B is chosen as by :func:`~adaverify.policy.budget.choose_budget`.

    Parameters
    ----------
    expected_survival : Tensor, shape [R, K] or [S, R, K], floating
        What is expected of the drafts to be made, from *earlier* blocks and the fitted law alone, in one scenario or
        in each of S; 0 or less where a request cannot use a draft. Drafts are verified in the order of survivals that
        are known only then, so of few that are verified more is to be expected than the means would tell.
    num_sampling, num_requests, num_non_draft, max_budget : Tensor, 0-dim, integer
        As for :func:`~adaverify.policy.budget.choose_budget`.
    costs : MaterializedCosts

    Returns
    -------
    DepthChoice
        The shallowest depth, then the smallest budget, of those that tie.
    """
    R, K = expected_survival.shape[-2:]
    # A comparison, not a clamp: it also keeps a NaN from setting the whole batch's depth.
    scores = torch.where(expected_survival > 0, expected_survival, 0.0).double().view(-1, 1, R, K)
    positions = torch.arange(K, device=scores.device)
    depths = torch.arange(K + 1, device=scores.device).view(-1, 1, 1)
    best_first = (scores * (positions < depths)).flatten(2).sort(dim=-1, descending=True).values.mean(dim=0)
    tokens = num_sampling + torch.nn.functional.pad(best_first.cumsum(dim=-1), (1, 0))
    limit = costs.verify.shape[0] - 1
    num_non_draft = num_non_draft.clamp(max=limit).long()
    most = torch.minimum(max_budget, limit - num_non_draft).clamp(min=0)
    count = torch.arange(R * K + 1, device=scores.device)
    verify = costs.verify.take((num_non_draft + count).clamp(max=limit))
    reading = cost_of_prompts(num_requests, num_non_draft, costs)
    cost = costs.draft.index_select(1, num_requests.view(1).long()) + verify - reading
    allowed = count <= most
    rate = torch.where(allowed, tokens / cost, float("-inf"))
    best = rate.flatten().argmax()
    depth = best.div(rate.shape[1], rounding_mode="floor")
    everything = torch.minimum(most, depth * R)
    free = costs.verify.take(num_non_draft + everything) <= costs.verify.take(num_non_draft)
    budget = torch.where(free, everything, best % rate.shape[1])
    return DepthChoice(depth, budget, rate.take(best), cost.take(best), cost[0, 0])


def worth_another_pass(
    survival: Tensor,
    next_confidence: Tensor,
    rate: Tensor,
    draft_ms: Tensor,
    verify_ms: Tensor,
    trims_later: bool,
) -> Tensor:
    """Whether one more draft for each request is expected to bring more than its time would elsewhere.

    One more pass is worth ``sum of survival * next_confidence`` tokens; at the going rate its time is worth
    ``rate * cost`` (Dinkelbach 1967: a ratio is largest where numerator less rate times denominator is). Survival
    never rises along a block, so where passes cost about the same the first that does not pay is the last that needs
    asking; a cheaper one behind a dear one (a padded batch size reached) is not looked for.

    Parameters
    ----------
    survival : Tensor, shape [R], floating
        Of the drafts made last; 0 for requests that can use no more. It may be live: all it follows from is known
        before the next draft is drawn.
    next_confidence : Tensor, 0-dim or [R], floating
        Expected confidence of the next draft.
    rate : Tensor, 0-dim, floating
        Tokens per millisecond; see :class:`DepthChoice`.
    draft_ms, verify_ms : Tensor, 0-dim, floating
        Milliseconds of the pass, and of verifying what it drafts.
    trims_later : bool
        Drafts that are not worth their verification will be left out of it. Otherwise all are verified.

    Returns
    -------
    Tensor, 0-dim, bool
    """
    gain = survival.double() * next_confidence
    if not trims_later:
        return gain.sum() > rate * (draft_ms + verify_ms)
    price = rate * verify_ms / (survival > 0).sum().clamp(min=1)
    return (gain - price).clamp(min=0).sum() > rate * draft_ms
