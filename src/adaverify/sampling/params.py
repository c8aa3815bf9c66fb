"""Sampling parameters of one request; vLLM's names and meanings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from adaverify.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 256


def _is_text(value: str) -> bool:
    """Whether a string is not empty and holds no half of a surrogate pair, which tokenizers cannot read."""
    return bool(value) and not any("\ud800" <= character <= "\udfff" for character in value)


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are drawn.

    Parameters
    ----------
    n : int
        Completions per prompt.
    temperature : float
        0 is greedy.
    top_p : float
        Mass of the nucleus, in (0, 1].
    top_k : int
        Number of most likely tokens kept; 0 or -1 keeps all.
    min_p : float
        Least probability kept, relative to the most likely token's, in [0, 1].
    presence_penalty, frequency_penalty : float
        Subtracted from the logits of tokens already generated, in [-2, 2].
    repetition_penalty : float
        Divides (positive) or multiplies (negative) the logits of tokens of prompt and output, > 0.
    logit_bias : dict of int to float, optional
        Added to the logits.
    allowed_token_ids : list of int, optional
        All others are forbidden.
    bad_words_token_ids : list of list of int
        Token sequences that must not be completed.
    bad_words : list of str
        The same as text; the engine turns them into token sequences.
    seed : int, optional
        Makes the request's draws reproducible, whatever else is in the batch. With speculation and standard
        verification the text may still differ between runs, since which draws decide depends on how many drafts are
        verified; with coupled verification, and without speculation, it is the same (but for the rounding of the
        model's arithmetic).
    stop : list of str
        Strings that end the text; not part of it unless ``include_stop_str_in_output``.
    stop_token_ids : list of int
        Tokens that end the text.
    ignore_eos : bool
        Go on after the end-of-sequence token.
    min_tokens : int
        No end-of-sequence and stop tokens before so many tokens.
    max_tokens : int, optional
        Most tokens generated; to the model's limit by default.
    logprobs : int, optional
        Report the chosen token's log-probability and those of so many most likely ones.
    skip_special_tokens : bool
        Leave special tokens out of the text.
    include_stop_str_in_output : bool

    Raises
    ------
    InvalidRequestError
        A value is out of range; the message names it.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = field(default_factory=list)
    bad_words_token_ids: list[list[int]] = field(default_factory=list)
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", [self.stop])

        def require(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise InvalidRequestError(f"{name} must be {rule}, got {getattr(self, name)!r}", param=name)

        require(self.n >= 1, "n", "at least 1")
        require(math.isfinite(self.temperature) and self.temperature >= 0, "temperature", "0 or more")
        require(0 < self.top_p <= 1, "top_p", "in (0, 1]")
        require(-1 <= self.top_k < 2**63, "top_k", "-1 (all), 0 (all) or more, a 64-bit integer")
        require(0 <= self.min_p <= 1, "min_p", "in [0, 1]")
        require(-2 <= self.presence_penalty <= 2, "presence_penalty", "in [-2, 2]")
        require(-2 <= self.frequency_penalty <= 2, "frequency_penalty", "in [-2, 2]")
        require(
            math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0, "repetition_penalty", "more than 0"
        )
        require(self.min_tokens >= 0, "min_tokens", "0 or more")
        require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "at least 1")
        require(
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"at most max_tokens ({self.max_tokens})",
        )
        require(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"between 0 and {MAX_LOGPROBS}"
        )
        require(all(self.stop), "stop", "a list of strings, none empty")
        # every token of the request is searched for all of them, on the thread that serves everybody
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"stop has {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are taken", param="stop"
            )
        require(self.allowed_token_ids is None or len(self.allowed_token_ids) > 0, "allowed_token_ids", "not empty")
        require(all(self.bad_words_token_ids), "bad_words_token_ids", "a list of token sequences, none empty")
        require(all(map(_is_text, self.bad_words)), "bad_words", "a list of strings, none empty, in valid Unicode")
        require(self.seed is None or -(2**63) <= self.seed < 2**63, "seed", "a 64-bit integer")
        require(
            self.logit_bias is None or all(math.isfinite(b) for b in self.logit_bias.values()),
            "logit_bias",
            "finite numbers",
        )

    @property
    def is_greedy(self) -> bool:
        """Whether every token is the most likely one."""
        return self.temperature == 0.0

    @property
    def has_target_only_transforms(self) -> bool:
        """Whether the target's distribution is changed in ways the drafter's is not."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
            or bool(self.logit_bias)
            or self.allowed_token_ids is not None
            or bool(self.bad_words_token_ids)
            or self.min_tokens > 0
        )
