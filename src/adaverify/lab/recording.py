"""Answers prompts with an engine that is being recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaverify.engine.engine import Engine
from adaverify.errors import ConfigError
from adaverify.sampling.params import SamplingParams
from adaverify.training.prompts import PromptSource, mix


@dataclass(frozen=True)
class Conversation:
    """One prompt on its way: user turns still to come, and what has been said.

    Attributes
    ----------
    dataset : str
    turns : tuple of str
        User turns, the next first.
    params : SamplingParams
    messages : tuple of dict
    """

    dataset: str
    turns: tuple[str, ...]
    params: SamplingParams
    messages: tuple[dict[str, str], ...] = ()

    @property
    def asked(self) -> tuple[dict[str, str], ...]:
        """The messages up to the next user turn, included."""
        return (*self.messages, {"role": "user", "content": self.turns[0]})

    def answered(self, text: str) -> Conversation | None:
        """What follows an answer: the next turn, if there is one."""
        if len(self.turns) == 1 or not text:
            return None
        return replace(self, turns=self.turns[1:], messages=(*self.asked, {"role": "assistant", "content": text}))


def conversations(
    sources: Sequence[PromptSource], limit: int | None, params: Sequence[SamplingParams]
) -> list[Conversation]:
    """The first ``limit`` prompts of every source, interleaved; sampling parameters take turns, each with a new seed.

    They take turns within every source, so that no dataset is confounded with a temperature. The dataset of a prompt is
    its file's name, with the line's category behind a slash where it names one.
    """
    chosen = [replace(source, conversations=source.conversations[:limit]) for source in sources]
    by_name = {source.name: source for source in chosen}
    position = {source.name: number for number, source in enumerate(chosen)}
    if len(by_name) < len(chosen):
        raise ConfigError("two prompt files have the same name, and could not be told apart in the trace; rename one")
    result = []
    for number, (prompt_id, turns) in enumerate(mix(chosen)):
        name, index = prompt_id.rsplit("/", 1)
        category = by_name[name].categories[int(index)]
        # neighbours of different sources differ too
        one = params[(int(index) + position[name]) % len(params)]
        dataset = f"{name}/{category}" if category else name
        result.append(Conversation(dataset, tuple(turns), replace(one, seed=(one.seed or 0) + number)))
    return result


def answer(
    engine: Engine, work: Sequence[Conversation], on_progress: Callable[[int], None] = lambda done: None
) -> list[str]:
    """Hold all conversations, as many at a time as the engine has seats.

    Returns
    -------
    list of str
        Why completions failed; the others went on. Prompts that leave no room for an answer are among them.
    """
    waiting: list[Conversation] = list(work)[::-1]
    running: dict[str, tuple[Conversation, list[int]]] = {}
    errors: list[str] = []
    number, done = 0, 0
    while waiting or running:
        while waiting and len(running) < engine.config.max_num_seqs:
            one = waiting.pop()
            tokens = _tokens(engine.tokenizer, one)
            if len(tokens) >= engine.max_model_len:
                errors.append(
                    f"a prompt of {one.dataset} has {len(tokens)} tokens, too many for {engine.max_model_len}"
                )
                continue
            engine.add_request(tokens, one.params, str(number), one.dataset)
            running[str(number)] = (one, [])
            number += 1
        for delta in engine.step():
            one, output = running[delta.request_id]
            output.extend(delta.token_ids)
            if delta.finish_reason is None:
                continue
            del running[delta.request_id]
            done += 1
            on_progress(done)
            if delta.finish_reason == "error":
                errors.append(str(delta.error))
                continue
            following = one.answered(str(engine.tokenizer.decode(output, skip_special_tokens=True)).strip())
            if following is not None:
                waiting.append(following)
    return errors


def _tokens(tokenizer: Any, one: Conversation) -> list[int]:
    if tokenizer.chat_template is None:
        return list(tokenizer(one.asked[-1]["content"])["input_ids"])
    return list(
        tokenizer.apply_chat_template(list(one.asked), add_generation_prompt=True, return_dict=True)["input_ids"]
    )
