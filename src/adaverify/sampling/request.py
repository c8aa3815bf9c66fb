"""What a request brings to a sampling step, and what the step gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaverify.outputs import PositionLogprobs
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.token_rules import has_token_rules


@dataclass(frozen=True)
class SampleRequest:
    """What one request brings to the step.

    Attributes
    ----------
    params : SamplingParams
    seed : int
        Signed 64-bit integer.
    prompt_token_ids, output_token_ids : sequence of int
        The tokens so far.
    draft_token_ids : sequence of int
        Admitted drafts, within the target's vocabulary; may be empty.
    q_start : int, optional
        Row of ``q`` for the first draft, the others follow it; None for one-hot drafts.
    eos_token_ids : frozenset of int
        Forbidden before ``min_tokens``.
    """

    params: SamplingParams
    seed: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    draft_token_ids: Sequence[int] = ()
    q_start: int | None = None
    eos_token_ids: frozenset[int] = frozenset()

    @property
    def num_rows(self) -> int:
        """Rows of logits the request owns."""
        return 1 + len(self.draft_token_ids)

    @property
    def position(self) -> int:
        """Absolute position of the token its first row predicts."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def has_token_rules(self) -> bool:
        """Whether its logits depend on its own tokens."""
        return has_token_rules(self.params, len(self.output_token_ids))


@dataclass(frozen=True)
class SampleResult:
    """What the step gives one request.

    Attributes
    ----------
    token_ids : list of int
        The accepted drafts and one more token; without that one if the request failed.
    num_accepted : int
    logprobs : list of PositionLogprobs, optional
        One entry per token if the request asked for them.
    error : str, optional
        Why the request failed; all others go on.
    """

    token_ids: list[int]
    num_accepted: int
    logprobs: list[PositionLogprobs] | None = None
    error: str | None = None
