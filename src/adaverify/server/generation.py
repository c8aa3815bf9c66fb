"""The completions of one HTTP request: several prompts, n completions each, in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from adaverify.errors import InvalidRequestError, RequestFailedError
from adaverify.outputs import CompletionDelta, CompletionOutput
from adaverify.sampling.params import SamplingParams
from adaverify.server.metrics import RequestTimes, ServerMetrics
from adaverify.server.responses import PromptTokensDetails, Usage

if TYPE_CHECKING:
    from adaverify.engine.async_engine import AsyncEngine


class Generation:
    """Runs the prompts of one HTTP request and counts its tokens.

    Completion ``j`` of prompt ``i`` is choice ``i * n + j``, as in the OpenAI API.

    Parameters
    ----------
    engine : AsyncEngine
    metrics : ServerMetrics
        Gets the latencies.
    prompts : list of list of int
        Token ids.
    params : SamplingParams
    request_id : str
    dataset : str
        Where the prompts come from, for recorded traces.

    Raises
    ------
    InvalidRequestError
        The request asks for more completions than the engine could ever queue.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        metrics: ServerMetrics,
        prompts: list[list[int]],
        params: SamplingParams,
        request_id: str,
        dataset: str = "",
    ) -> None:
        self.num_choices = len(prompts) * params.n
        most = engine.config.max_waiting
        if self.num_choices > most:
            raise InvalidRequestError(
                f"{len(prompts)} prompts with n={params.n} make {self.num_choices} completions, more than the "
                f"queue holds ({most}); split the request",
                param="n" if params.n > 1 else "prompt",
            )
        self.request_id = request_id
        self._dataset = dataset
        self._engine = engine
        self._metrics = metrics
        self._prompts = prompts
        self._params = params
        self._cached_tokens = [0] * len(prompts)
        self._completion_tokens = 0

    async def deltas(self) -> AsyncGenerator[tuple[int, CompletionDelta], None]:
        """Yield ``(choice, delta)`` as the engine makes them; closing it aborts what still runs.

        Raises
        ------
        RequestFailedError
            One of the completions failed; the others are aborted.
        """
        times = [RequestTimes(self._metrics) for _ in range(self.num_choices)]
        async with aclosing(self._merged()) as merged:
            async for prompt, delta in merged:
                if delta.finish_reason == "error":
                    raise RequestFailedError(delta.error or "the completion failed")
                choice = prompt * self._params.n + delta.index
                times[choice].record(len(delta.token_ids), finished=delta.finish_reason is not None)
                self._completion_tokens += len(delta.token_ids)
                if delta.index == 0:
                    self._cached_tokens[prompt] = delta.num_cached_tokens
                yield choice, delta

    async def collect(self) -> list[CompletionOutput]:
        """Wait for all completions; one output a choice, in order."""
        outputs = [CompletionOutput(index) for index in range(self.num_choices)]
        async with aclosing(self.deltas()) as deltas:
            async for choice, delta in deltas:
                outputs[choice].extend(delta)
        return outputs

    def usage(self) -> Usage:
        """Tokens so far; a prompt counts once, whatever ``n``."""
        prompt_tokens = sum(len(prompt) for prompt in self._prompts)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=self._completion_tokens,
            total_tokens=prompt_tokens + self._completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached_tokens)),
        )

    async def _merged(self) -> AsyncGenerator[tuple[int, CompletionDelta], None]:
        """Interleave the prompts' streams in the order in which their deltas come."""
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def pump(prompt: int) -> None:
            stream: Any = self._engine.generate(
                self._prompts[prompt], self._params, f"{self.request_id}-{prompt}", self._dataset
            )
            try:
                async with aclosing(stream):
                    async for delta in stream:
                        queue.put_nowait((prompt, delta))
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        pumps = [asyncio.create_task(pump(prompt)) for prompt in range(len(self._prompts))]
        running = len(pumps)
        try:
            while running:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
