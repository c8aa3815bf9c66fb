"""One call per step: from the target's logits to the tokens of every request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from adaverify.outputs import PositionLogprobs
from adaverify.sampling.laws import DraftLaws
from adaverify.sampling.logprobs import position_logprobs
from adaverify.sampling.noise import position_keys
from adaverify.sampling.processors import SamplingTensors, filtered_probabilities
from adaverify.sampling.race import run_race
from adaverify.sampling.request import SampleRequest, SampleResult
from adaverify.sampling.rng import Purpose, uniforms
from adaverify.sampling.token_rules import apply_token_rules
from adaverify.sampling.top import most_likely
from adaverify.sampling.verification import Verification, verify_greedy, verify_standard

__all__ = ["SampleRequest", "SampleResult", "sample"]

_FINE, _NOT_FINITE, _NOTHING_ALLOWED, _RULES_OVERFLOW = range(4)
_FAULTS = {
    _NOT_FINITE: "the target's logits are not finite (NaN or infinity)",
    _NOTHING_ALLOWED: "no token is allowed: allowed_token_ids, bad_words, min_tokens and logit_bias forbid all of them",
    _RULES_OVERFLOW: "logit_bias or penalties make the logits overflow; use smaller values",
}


@torch.inference_mode()
def sample(
    logits: Tensor,
    requests: Sequence[SampleRequest],
    q: Tensor | DraftLaws | None = None,
    coupled: bool = False,
) -> list[SampleResult]:
    """Verify every request's drafts and draw its next token.

    Parameters
    ----------
    logits : Tensor [N, V] float
        The target's logits; request ``r`` owns the next ``requests[r].num_rows`` rows, in order. Float32 rows of
        requests with token rules are changed in place.
    requests : sequence of SampleRequest
    q : DraftLaws or Tensor [M, V] float32, optional
        The laws that drafts were drawn from, by :attr:`SampleRequest.q_start`; nothing to ``coupled`` verification.
    coupled : bool
        Emit at every position the token that the target's law and the position's noise give, and accept the drafts
        that are it: the text does not depend on the drafts. Otherwise standard verification.

    Raises
    ------
    ValueError
        The rows do not match the requests, or ``q`` does not match the logits or the drafts.
    """
    if not requests:
        return []
    laws = DraftLaws.wrap(q)
    _check(logits, requests, laws)
    starts = _row_starts(requests)
    ruled = [r for r, request in enumerate(requests) if request.has_token_rules]
    if ruled:
        logits = logits.to(torch.float32)

    # One pass gives the most likely tokens and finds every NaN, since the maximum propagates it.
    best, target_tokens = most_likely(logits)
    fault = torch.where(best.isfinite(), _FINE, _NOT_FINITE)
    raw = {}
    for r in ruled:
        rows = slice(starts[r], starts[r] + requests[r].num_rows)
        if requests[r].params.logprobs is not None:
            raw[r] = logits[rows].clone()
        _apply_rules(logits[rows], requests[r], target_tokens[rows], fault[rows])

    if coupled:
        tokens_of_rows = _coupled_tokens(logits, target_tokens, requests, starts)
        outcome = verify_greedy(tokens_of_rows, fault > 0, *_drafts(requests, starts, logits.device))
    else:
        outcome = _verify(logits, target_tokens, fault > 0, requests, starts, laws)
    emitting = torch.tensor(starts, device=logits.device) + outcome.num_accepted
    num_accepted, next_token, faults = torch.stack((outcome.num_accepted, outcome.next_token, fault[emitting])).tolist()

    tokens = [
        [*request.draft_token_ids[:accepted], *([] if code else [token])]
        for request, accepted, token, code in zip(requests, num_accepted, next_token, faults, strict=True)
    ]
    logprobs = _logprobs(logits, raw, requests, starts, tokens)
    return [
        SampleResult(
            token_ids=tokens[r],
            num_accepted=num_accepted[r],
            logprobs=logprobs.get(r),
            error=f"{_FAULTS[code]} (token position {requests[r].position + num_accepted[r]})" if code else None,
        )
        for r, code in enumerate(faults)
    ]


def _check(logits: Tensor, requests: Sequence[SampleRequest], laws: DraftLaws | None) -> None:
    needed = sum(request.num_rows for request in requests)
    if needed != len(logits):
        raise ValueError(f"logits have {len(logits)} rows, but the requests and their drafts need {needed}")
    if laws is None:
        if any(request.q_start is not None and request.draft_token_ids for request in requests):
            raise ValueError("a request names rows of q (q_start), but q is None; pass the laws of the drafts")
    elif not laws.fits(logits.shape[-1]):
        raise ValueError(
            f"q covers a vocabulary of {laws.q.shape[-1]} and the target's logits one of {logits.shape[-1]}; "
            "map the drafter's distributions to the target's vocabulary first"
        )


def _row_starts(requests: Sequence[SampleRequest]) -> list[int]:
    return [0, *accumulate(request.num_rows for request in requests[:-1])]


def _apply_rules(rows: Tensor, request: SampleRequest, target_tokens: Tensor, fault: Tensor) -> None:
    """Change one request's rows; update its most likely tokens and faults, keeping faults the model made."""
    apply_token_rules(
        rows,
        request.params,
        request.prompt_token_ids,
        request.output_token_ids,
        request.draft_token_ids,
        request.eos_token_ids,
    )
    best, tokens = most_likely(rows)
    target_tokens.copy_(tokens)
    # The law stays the same, and a huge bias does not overflow when it is divided by the temperature.
    rows -= best.unsqueeze(-1)
    made = torch.where(best.isfinite(), _FINE, torch.where(best == -torch.inf, _NOTHING_ALLOWED, _RULES_OVERFLOW))
    fault.copy_(torch.where(fault > 0, fault, made))


def _coupled_tokens(
    logits: Tensor, target_tokens: Tensor, requests: Sequence[SampleRequest], starts: Sequence[int]
) -> Tensor:
    """The token that each row gives [N]: the winner of its position's race, or a greedy request's most likely token."""
    device = logits.device
    sampled = [r for r, request in enumerate(requests) if not request.params.is_greedy]
    if not sampled:
        return target_tokens
    chosen = [requests[r] for r in sampled]
    rows = torch.tensor([starts[r] + i for r in sampled for i in range(requests[r].num_rows)], device=device)
    each = SamplingTensors.from_params([r.params for r in chosen], [r.seed for r in chosen], device)
    p, owner = _processed(logits if len(rows) == len(logits) else logits.index_select(0, rows), chosen, each)
    positions = torch.tensor([[r.position + i] for r in chosen for i in range(r.num_rows)], device=device)
    winners = run_race(p, position_keys(each.seeds[owner], positions).squeeze(-1)).tokens
    return target_tokens.index_copy(0, rows, winners)


def _processed(logits: Tensor, requests: Sequence[SampleRequest], each: SamplingTensors) -> tuple[Tensor, Tensor]:
    """Processed laws of requests that own all rows of ``logits``, and the owner of each row."""
    num_rows = torch.tensor([request.num_rows for request in requests], device=logits.device)
    owner = torch.arange(len(requests), device=logits.device).repeat_interleave(num_rows, output_size=len(logits))
    p = filtered_probabilities(logits, each.temperature[owner], each.top_k[owner], each.top_p[owner], each.min_p[owner])
    return p, owner


def _verify(
    logits: Tensor,
    target_tokens: Tensor,
    bad_row: Tensor,
    requests: Sequence[SampleRequest],
    starts: Sequence[int],
    laws: DraftLaws | None,
) -> Verification:
    """Verify greedy requests by their most likely tokens, all others by their distributions."""
    device = logits.device
    greedy = [r for r, request in enumerate(requests) if request.params.is_greedy]
    sampled = [r for r, request in enumerate(requests) if not request.params.is_greedy]
    if not sampled:
        return verify_greedy(target_tokens, bad_row, *_drafts(requests, starts, device))
    if not greedy:
        return _verify_sampled(logits, bad_row, requests, laws)

    of_greedy = verify_greedy(
        target_tokens, bad_row, *_drafts([requests[r] for r in greedy], [starts[r] for r in greedy], device)
    )
    rows = torch.tensor([starts[r] + i for r in sampled for i in range(requests[r].num_rows)], device=device)
    of_sampled = _verify_sampled(logits.index_select(0, rows), bad_row[rows], [requests[r] for r in sampled], laws)
    order = torch.tensor([*greedy, *sampled], device=device).argsort()
    return Verification(*(torch.cat(parts)[order] for parts in zip(of_greedy, of_sampled, strict=True)))


def _verify_sampled(
    logits: Tensor, bad_row: Tensor, requests: Sequence[SampleRequest], laws: DraftLaws | None
) -> Verification:
    """Verify requests that own all rows of ``logits``."""
    device = logits.device
    row_start, drafts, num_drafts = _drafts(requests, _row_starts(requests), device)
    each = SamplingTensors.from_params([r.params for r in requests], [r.seed for r in requests], device)
    p, _ = _processed(logits, requests, each)

    depth = torch.arange(drafts.shape[1] + 1, device=device)
    positions = torch.tensor([r.position for r in requests], device=device).unsqueeze(-1) + depth
    q_start = torch.tensor([-1 if r.q_start is None else r.q_start for r in requests], device=device).unsqueeze(-1)
    drawn = (q_start >= 0) & (depth[:-1] < num_drafts.unsqueeze(-1))
    return verify_standard(
        p,
        bad_row,
        row_start,
        drafts,
        num_drafts,
        laws,
        torch.where(drawn, q_start + depth[:-1], -1),
        uniforms(each.seeds, Purpose.ACCEPT, positions[:, :-1]),
        uniforms(each.seeds, Purpose.TARGET, positions),
    )


def _drafts(
    requests: Sequence[SampleRequest], starts: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Row starts [R], drafts [R, K] padded with token 0, and their numbers [R]."""
    counts = [len(request.draft_token_ids) for request in requests]
    width = max(counts)
    padded = [[*r.draft_token_ids, *[0] * (width - n)] for r, n in zip(requests, counts, strict=True)]
    drafts = torch.tensor(padded, dtype=torch.int64, device=device)
    return torch.tensor(starts, device=device), drafts, torch.tensor(counts, device=device)


def _logprobs(
    logits: Tensor,
    raw: dict[int, Tensor],
    requests: Sequence[SampleRequest],
    starts: Sequence[int],
    tokens: Sequence[list[int]],
) -> dict[int, list[PositionLogprobs]]:
    """Raw log-probabilities of the emitted tokens, for the requests that asked; ``raw`` holds rows changed since."""
    asking = [r for r, request in enumerate(requests) if request.params.logprobs is not None]
    rows = [raw[r][: len(tokens[r])] if r in raw else logits[starts[r] : starts[r] + len(tokens[r])] for r in asking]
    token_ids = [token for r in asking for token in tokens[r]]
    if not token_ids:
        return {r: [] for r in asking}
    num_top = [requests[r].params.logprobs or 0 for r in asking for _ in tokens[r]]
    entries = iter(position_logprobs(torch.cat(rows), token_ids, num_top))
    return {r: [next(entries) for _ in tokens[r]] for r in asking}
