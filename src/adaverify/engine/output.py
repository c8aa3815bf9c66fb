"""From token ids to text: incremental detokenization, stop conditions and deltas of one completion."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from adaverify.engine.request import Request
from adaverify.outputs import CompletionDelta, PositionLogprobs
from adaverify.sampling.sampler import SampleResult

_CONTEXT_TOKENS = 5
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Turns a growing token sequence into text that never has to be taken back.

    A token's text can depend on its predecessor (leading spaces) and a character can span tokens, so a window
    of tokens is decoded with and without the new ones, and the difference is the new text.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    prompt_token_ids : list of int
        Context for the first output token.
    skip_special_tokens : bool
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt_token_ids: list[int], skip_special_tokens: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._known = list(prompt_token_ids[-_CONTEXT_TOKENS:])
        self._pending: list[int] = []

    def push(self, token_ids: list[int], final: bool = False) -> str:
        """Text that ``token_ids`` completes; ``final`` gives up waiting for the rest of a character."""
        self._pending += token_ids
        before = self._decode(self._known)
        text = self._decode(self._known + self._pending)
        if not final and text.endswith(_REPLACEMENT):
            return ""
        self._known, self._pending = (self._known + self._pending)[-_CONTEXT_TOKENS - len(self._pending) :], []
        return text[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skip_special_tokens))


class CompletionStream:
    """Feeds one completion's tokens, ends it where its parameters say, and hands out deltas."""

    def __init__(self, request: Request, tokenizer: PreTrainedTokenizerBase) -> None:
        params = request.params
        self.request = request
        self._detokenizer = Detokenizer(tokenizer, request.prompt_token_ids, params.skip_special_tokens)
        self._held = ""
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []

    def feed(self, result: SampleResult) -> list[int]:
        """Take one round's tokens; returns those that count, up to the one that ends the completion."""
        accepted: list[int] = []
        for i, token in enumerate(result.token_ids):
            accepted.append(token)
            self._token_ids.append(token)
            if result.logprobs is not None:
                self._logprobs.append(result.logprobs[i])
            self._check(token, self.request.num_output_tokens + len(accepted))
            if self.request.finish_reason is not None:
                break
        return accepted

    def fail(self, error: str) -> None:
        """End the completion with an error."""
        self.request.finish_reason = "error"
        self.request.error = error

    def delta(self) -> CompletionDelta:
        """What has come since the last delta."""
        request = self.request
        delta = CompletionDelta(
            request_id=request.request_id,
            index=request.index,
            text="".join(self._text),
            token_ids=self._token_ids,
            logprobs=self._logprobs if request.params.logprobs is not None else None,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            error=request.error,
            num_cached_tokens=request.num_cached_tokens,
        )
        self._text, self._token_ids, self._logprobs = [], [], []
        return delta

    def _check(self, token: int, num_output_tokens: int) -> None:
        """End by token id, by stop string or by length, in this order."""
        request, params = self.request, self.request.params
        if token in request.ending_token_ids:
            request.finish_reason = "stop"
            request.stop_reason = token if token in params.stop_token_ids else None
            self._flush([token] if params.include_stop_str_in_output else [])
            return
        self._extend(self._detokenizer.push([token]), num_output_tokens)
        if request.finish_reason is None and request.num_prompt_tokens + num_output_tokens >= request.max_len:
            request.finish_reason = "length"
            self._flush([])

    def _flush(self, token_ids: list[int]) -> None:
        """Add what was held back, and the text of ``token_ids``."""
        self._text.append(self._held + self._detokenizer.push(token_ids, final=True))
        self._held = ""

    def _extend(self, text: str, num_output_tokens: int) -> None:
        """Add text, look for a stop string, and hold back what may become one."""
        params = self.request.params
        if not params.stop:
            self._text.append(text)
            return
        self._held += text
        found = [(self._held.find(stop), stop) for stop in params.stop if stop in self._held]
        if found and num_output_tokens >= params.min_tokens:
            start, stop = min(found)
            end = start + len(stop) if params.include_stop_str_in_output else start
            self._text.append(self._held[:end])
            self._held = ""
            self.request.finish_reason = "stop"
            self.request.stop_reason = stop
            return
        keep = max(_overlap(self._held, stop) for stop in params.stop)
        cut = len(self._held) - keep
        self._text.append(self._held[:cut])
        self._held = self._held[cut:]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of ``stop`` that ends ``text``."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
