"""What the engine gives back: deltas while it streams, and whole outputs offline."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one token under the target's raw distribution.

    Attributes
    ----------
    token_id : int
    logprob : float
        Natural logarithm.
    rank : int
        1 for the most likely token.
    """

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True)
class PositionLogprobs:
    """Log-probabilities at one output position: the emitted token's, and the most likely ones'."""

    chosen: TokenLogprob
    top: list[TokenLogprob]


@dataclass(frozen=True)
class CompletionDelta:
    """What one step added to one completion.

    Attributes
    ----------
    request_id : str
    index : int
        Which of the ``n`` completions of the request.
    text : str
        New text; may be empty while a character or a possible stop string is incomplete.
    token_ids : list of int
        New tokens.
    logprobs : list of PositionLogprobs, optional
        One entry per new token if the request asked for them.
    finish_reason : str, optional
        ``stop``, ``length``, ``abort`` or ``error`` on the last delta, else None.
    stop_reason : str or int, optional
        The stop string or stop token id that ended it.
    error : str, optional
        Why the completion failed, with ``finish_reason == "error"``.
    num_cached_tokens : int
        Prompt tokens that were found in the prefix cache.
    """

    request_id: str
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    num_cached_tokens: int = 0


@dataclass
class CompletionOutput:
    """One finished completion."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None

    def extend(self, delta: CompletionDelta) -> None:
        """Append what one step added."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.error = delta.error


@dataclass
class RequestOutput:
    """A prompt and its completions."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
