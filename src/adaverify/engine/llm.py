"""Offline use: ``LLM(model).generate(prompts, SamplingParams(...))``, with vLLM's shape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from adaverify.config import EngineConfig
from adaverify.engine.factory import build_engine
from adaverify.engine.stats import EngineStats
from adaverify.errors import ConfigError, InvalidRequestError
from adaverify.outputs import CompletionOutput, RequestOutput
from adaverify.sampling.params import SamplingParams

Prompt = str | list[int]
Message = dict[str, str]


class LLM:
    """A target, and perhaps a drafter, in this process.

    Parameters
    ----------
    model : str
        Folder or hub name of the target.
    speculative_config : dict or str, optional
        As ``--speculative-config``; see :class:`adaverify.config.SpeculativeConfig`.
    **options
        Further fields of :class:`adaverify.config.EngineConfig`.

    Raises
    ------
    ConfigError
        Names what cannot be served and what to change.

    Examples
    --------
    >>> llm = LLM("path/to/model")  # doctest: +SKIP
    >>> llm.generate("Once upon a time", SamplingParams(max_tokens=8))[0].outputs[0].text  # doctest: +SKIP
    """

    def __init__(self, model: str, speculative_config: dict[str, Any] | str | None = None, **options: Any) -> None:
        # offline there is no client to send away: the queue takes every prompt
        options.setdefault("max_waiting", 1_000_000)
        self.config = EngineConfig.build(model=str(model), speculative_config=speculative_config, **options)
        self.engine = build_engine(self.config)
        self._ids = itertools.count()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's tokenizer."""
        return self.engine.tokenizer

    def generate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """Complete ``prompts``, all together; outputs come in the prompts' order.

        Parameters
        ----------
        prompts : str, list of int, or a sequence of these
        params : SamplingParams, optional
            One for all, or one per prompt.

        Raises
        ------
        InvalidRequestError
            A prompt or its parameters cannot be served; nothing has been generated then.
        """
        batch = _as_batch(prompts)
        each = [params or SamplingParams()] * len(batch) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(batch):
            raise InvalidRequestError(f"{len(batch)} prompts but {len(each)} sampling parameters; give one per prompt")
        outputs: dict[str, RequestOutput] = {}
        try:
            for prompt, one in zip(batch, each, strict=True):
                request_id = str(next(self._ids))
                token_ids = self.engine.add_request(prompt, one, request_id)
                completions = [CompletionOutput(index) for index in range(one.n)]
                outputs[request_id] = RequestOutput(
                    request_id, prompt if isinstance(prompt, str) else None, token_ids, completions
                )
            while self.engine.has_unfinished:
                for delta in self.engine.step():
                    outputs[delta.request_id].outputs[delta.index].extend(delta)
        except BaseException:
            for request_id in outputs:
                self.engine.abort(request_id)
            raise
        self.engine.save_estimator()
        return list(outputs.values())

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several, through the model's chat template.

        Raises
        ------
        ConfigError
            The tokenizer has no chat template.
        """
        conversations: list[Any] = list(messages) if messages and isinstance(messages[0], list) else [messages]
        if self.tokenizer.chat_template is None:
            raise ConfigError(f"{self.config.model!r} has no chat template; use generate with a plain prompt")
        prompts: list[Prompt] = [
            self.tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=True)["input_ids"]  # type: ignore[call-overload, index]
            for one in conversations
        ]
        return self.generate(prompts, params)

    def stats(self) -> EngineStats:
        """Snapshot of the engine's counters."""
        return self.engine.stats()


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
