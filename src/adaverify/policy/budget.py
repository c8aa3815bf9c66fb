"""How many drafts the whole batch is worth verifying."""

from __future__ import annotations

import torch
from torch import Tensor

from adaverify.policy.cost import MaterializedCosts


def choose_budget(
    stale_survival: Tensor,
    num_sampling: Tensor,
    num_requests: Tensor,
    num_non_draft: Tensor,
    costs: MaterializedCosts,
    max_budget: Tensor,
    depth: Tensor | None = None,
) -> Tensor:
    """Choose the draft budget with the most expected tokens per millisecond.

    ``tokens(B) = num_sampling + sum of the B largest stale survivals`` and
    ``cost(B) = draft[depth, num_requests] + verify[num_non_draft + B] - reading``; the ratio is searched over every B,
    because real cost curves are staircases with many local maxima. Where verifying everything costs no more than
    verifying nothing, everything is verified. ``reading`` is what the step's prompts cost, see
    :func:`cost_of_prompts`. Where the depth of drafting is free to choose, too, see
    :func:`~adaverify.policy.depth.choose_depth`.

    Parameters
    ----------
    stale_survival : Tensor, shape [R, K], floating
        Survival of *earlier* blocks of these requests, negative where there is none. Never that of the drafts
        the budget is for, not even of drafts carried over from a step that did not schedule them: their
        later confidences tell what was drawn before, and the output would be biased.
    num_sampling : Tensor, 0-dim, integer
        Requests that emit a token this step whatever the budget.
    num_requests : Tensor, 0-dim, integer
        Requests that will draft after this step.
    num_non_draft : Tensor, 0-dim, integer
        Packed tokens that are not drafts: prefill chunks and one token per decoding request.
    costs : MaterializedCosts
    max_budget : Tensor, 0-dim, integer
        Drafts that could be verified, as scheduled: for the same reason it may not depend on the confidences
        of the current block, nor on how many of them are finite, nor on how many were made before drafting stopped.
    depth : Tensor, 0-dim, integer, optional
        How deep is drafted: K by default. It only sets what drafting costs.

    Returns
    -------
    Tensor, 0-dim, int64
        The budget; the smallest of those that tie.
    """
    # A comparison, not a clamp: it also keeps a NaN from setting the whole batch's budget.
    scores = torch.where(stale_survival > 0, stale_survival, 0.0).double().reshape(-1)
    best_first = scores.sort(descending=True).values
    limit = costs.verify.shape[0] - 1
    most = torch.minimum(max_budget, limit - num_non_draft).clamp(0, scores.shape[0]).long()
    budgets = torch.arange(scores.shape[0] + 1, device=scores.device)
    # take() rather than [...]: indexing by a 0-dim tensor reads it on the host.
    verify = costs.verify.take((num_non_draft + budgets).clamp(max=limit).long())
    tokens = num_sampling + torch.cat([best_first.new_zeros(1), best_first.cumsum(dim=0)])
    row = costs.draft[-1] if depth is None else costs.draft.index_select(0, depth.view(1))[0]
    rate = tokens / (row.take(num_requests.long()) + verify - cost_of_prompts(num_requests, num_non_draft, costs))
    best = torch.where(budgets <= most, rate, float("-inf")).argmax()
    free = verify.take(most) <= verify[0]
    return torch.where(free, most, best)


def cost_of_prompts(num_requests: Tensor, num_non_draft: Tensor, costs: MaterializedCosts) -> Tensor:
    """Milliseconds that a step takes for the prompts it reads, whatever is drafted; 0-dim.

    They must be paid in some step. Were they counted, drafts would look cheap beside them: the best ratio of one step
    would take in drafts that bring less per millisecond than a step without prompts does. They still move drafts up
    the cost curve.
    """
    limit = costs.verify.shape[0] - 1
    all_tokens = num_non_draft.clamp(max=limit).long()
    return costs.verify.take(all_tokens) - costs.verify.take(torch.minimum(num_requests.long(), all_tokens))
