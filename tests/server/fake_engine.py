"""An engine without a model: says fixed words, and shows what it was asked and what it gave up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from adaverify.config import EngineConfig
from adaverify.engine.stats import EngineStats
from adaverify.errors import EngineDeadError, InvalidRequestError, QueueFullError, ShuttingDownError
from adaverify.outputs import CompletionDelta, PositionLogprobs, TokenLogprob
from adaverify.sampling.params import SamplingParams

WORDS = "the quick brown fox jumps over the lazy dog. "
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'robot' %}{{ raise_exception('no robots here') }}{% endif %}"
    "<{{ message['role'] }}>{{ message['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """One token a byte, with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wrapped.chat_template = TEMPLATE
    return wrapped


@dataclass
class Seen:
    """One call of ``generate``."""

    prompt: str | list[int]
    params: SamplingParams
    request_id: str
    dataset: str = ""


@dataclass
class FakeEngine:
    """Implements the public interface of ``AsyncEngine``.

    ``pace`` seconds pass between steps; ``fail_at`` makes completion 0 fail at that token.
    """

    tokenizer: PreTrainedTokenizerBase = field(default_factory=byte_tokenizer)
    config: EngineConfig = field(default_factory=lambda: EngineConfig(model="fake/model", max_waiting=8))
    max_model_len: int = 256
    tokens_per_step: int = 3
    ending: str = "length"
    pace: float = 0.0
    fail_at: int | None = None
    refuse: Exception | None = None
    counters: EngineStats = field(default_factory=EngineStats)
    seen: list[Seen] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    is_healthy: bool = True
    started: bool = False
    draining: bool = False
    expired: bool = False

    async def start(self) -> None:
        self.started = True

    async def shutdown(self, grace: float) -> None:
        self.draining = True
        deadline = asyncio.get_running_loop().time() + grace
        while self.running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        self.expired = True
        while self.running:
            await asyncio.sleep(0.01)

    def stats(self) -> EngineStats:
        return self.counters

    async def generate(
        self, prompt: str | list[int], params: SamplingParams, request_id: str, dataset: str = ""
    ) -> AsyncIterator[CompletionDelta]:
        self._admit(prompt, params)
        self.seen.append(Seen(prompt, params, request_id, dataset))
        self.running.add(request_id)
        done = False
        try:
            left = self.max_model_len - len(prompt)
            budget = left if params.max_tokens is None else min(params.max_tokens, left)
            ids = self.tokenizer(WORDS * (1 + budget // 8)).input_ids[:budget]
            for start in range(0, budget, self.tokens_per_step):
                await asyncio.sleep(self.pace)
                for index in range(params.n):
                    yield self._delta(request_id, index, ids, start, params)
                    if self.fail_at is not None and start + self.tokens_per_step >= self.fail_at and index == 0:
                        return
                if self.expired:
                    return
            done = True
        finally:
            self.running.discard(request_id)
            if not done:
                self.aborted.append(request_id)

    def _admit(self, prompt: str | list[int], params: SamplingParams) -> None:
        if not self.is_healthy:
            raise EngineDeadError("the engine is dead")
        if self.draining:
            raise ShuttingDownError("the engine takes no new requests")
        if self.refuse is not None:
            raise self.refuse
        if len(prompt) >= self.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens, the model takes {self.max_model_len}", param="prompt"
            )
        if len(self.running) >= self.config.max_waiting:
            raise QueueFullError(f"{self.config.max_waiting} requests are waiting; try again later")

    def _delta(
        self, request_id: str, index: int, ids: list[int], start: int, params: SamplingParams
    ) -> CompletionDelta:
        new = ids[start : start + self.tokens_per_step]
        failed = self.fail_at is not None and start + len(new) >= self.fail_at and index == 0
        last = start + self.tokens_per_step >= len(ids)
        reason = "error" if failed else "abort" if self.expired else self.ending if last else None
        self.counters.generation_tokens += len(new)
        return CompletionDelta(
            request_id=request_id,
            index=index,
            text=self.tokenizer.decode(new),
            token_ids=new,
            logprobs=None if params.logprobs is None else [self._logprobs(token, params.logprobs) for token in new],
            finish_reason=reason,
            error="the target's logits are not finite" if failed else None,
            num_cached_tokens=2 + 10 * index,
        )

    def _logprobs(self, token: int, count: int) -> PositionLogprobs:
        top = [TokenLogprob((token + rank) % 256, -float(rank), rank) for rank in range(1, count + 1)]
        return PositionLogprobs(TokenLogprob(token, float("-inf"), 7), top)
