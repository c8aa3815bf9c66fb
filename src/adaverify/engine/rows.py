"""The rows of one step: what each request puts into the target's pass, and what it gets out of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from adaverify.engine.batch import Segment
from adaverify.engine.request import Request
from adaverify.engine.scheduler import StepPlan
from adaverify.engine.speculation import Round
from adaverify.sampling.request import SampleRequest, SampleResult


def admitted_drafts(current: Round | None, admitted: Sequence[int]) -> list[list[int]]:
    """The drafts of each decode that are verified."""
    if current is None:
        return [[] for _ in admitted]
    rows = current.block.token_ids.tolist()
    return [row[:count] for row, count in zip(rows, admitted, strict=True)]


def packed_segments(plan: StepPlan, drafts: Sequence[list[int]]) -> list[Segment]:
    """One segment per decode (its last token and its admitted drafts) and per prompt chunk."""
    segments = [
        Segment([request.token_ids[-1], *draft], request.num_tokens - 1, request.blocks, 1 + len(draft))
        for request, draft in zip(plan.decodes, drafts, strict=True)
    ]
    segments += [
        Segment(c.request.token_ids[c.start : c.end], c.start, c.request.blocks, int(c.samples)) for c in plan.chunks
    ]
    return segments


def sample_requests(
    sampling: Sequence[Request], drafts: Sequence[list[int]], current: Round | None
) -> list[SampleRequest]:
    """What the sampler has to know of each request that draws; the decodes, which have drafts, come first."""
    requests = []
    for row, request in enumerate(sampling):
        draft = drafts[row] if row < len(drafts) else []
        requests.append(
            SampleRequest(
                params=request.params,
                seed=request.seed,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=request.output_token_ids,
                draft_token_ids=draft,
                q_start=current.block.law_start(row) if current and draft else None,
                eos_token_ids=request.eos_token_ids,
            )
        )
    return requests


def telling_decodes(plan: StepPlan, results: Sequence[SampleResult]) -> list[bool]:
    """Whose labels say something about other requests; the decodes' results come first.

    Penalties, bias and forbidden tokens bend p but not q.
    """
    return [
        result.error is None and not request.params.has_target_only_transforms
        for request, result in zip(plan.decodes, results, strict=False)
    ]


def drafts_within_text(plan: StepPlan, drafts: Sequence[list[int]], accepted: Sequence[int]) -> list[int]:
    """How many of each decode's drafts lie before its text's end: what comes after a last token tells nothing."""
    within = []
    for request, draft, count in zip(plan.decodes, drafts, accepted, strict=True):
        ends = request.ending_token_ids
        within.append(next((i + 1 for i, token in enumerate(draft[:count]) if token in ends), len(draft)))
    return within


def sick_requests(
    plan: StepPlan, segments: Sequence[Segment], accepted: Sequence[int], finite: Sequence[bool]
) -> list[Request]:
    """Requests with a token, among those that stay, whose keys or values are not finite."""
    requests = plan.decodes + [chunk.request for chunk in plan.chunks]
    kept = [1 + count for count in accepted] + [chunk.num_tokens for chunk in plan.chunks]
    starts = [0, *accumulate(len(segment.token_ids) for segment in segments[:-1])]
    return [
        request
        for request, start, count in zip(requests, starts, kept, strict=True)
        if not all(finite[start : start + count])
    ]
