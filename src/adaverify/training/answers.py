"""The target's own answers to the training prompts, in a JSONL cache that a broken run takes up again."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from adaverify.engine.engine import Engine
from adaverify.errors import ConfigError
from adaverify.sampling.params import SamplingParams
from adaverify.training.prompts import PromptSource, mix

WRITTEN_BY_TARGET = "self"
_PLACEHOLDER = "\u2603"
_MAX_USER_TURN = 96


@dataclass(frozen=True)
class Answer:
    """One text to train on: what the target was given and what it answered.

    Attributes
    ----------
    id : str
        Source, number, turn and temperature.
    prompt_token_ids, output_token_ids : list of int
    """

    id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]

    @property
    def source(self) -> str:
        """Where the prompt is from."""
        return self.id.split("/")[0]

    @property
    def temperature(self) -> float:
        """At which it was drawn."""
        return float(self.id.rpartition("@")[2])


@dataclass(frozen=True)
class _Job:
    """A conversation, as far as it has come."""

    id: str
    temperature: float
    turns: list[str]
    messages: list[dict[str, str]]

    @property
    def turn_id(self) -> str:
        return f"{self.id}/{len(self.messages) // 2}@{self.temperature:g}"


class AnswerWriter:
    """Lets the target answer prompts, and write prompts of its own.

    Parameters
    ----------
    engine : Engine
        Serves the target; its ``max_num_seqs`` is the concurrency.
    path : Path
        JSONL cache, one :class:`Answer` a line; what it holds is not made again.
    max_tokens : int
        Longest answer.
    temperatures : sequence of float
        Every prompt is answered at each; those above 0 with top-p .95.
    """

    def __init__(self, engine: Engine, path: Path, max_tokens: int, temperatures: Sequence[float]) -> None:
        self.engine = engine
        self.path = path
        self.max_tokens = max_tokens
        self.temperatures = temperatures
        self.known = {answer.id: answer for answer in read_answers(path)} if path.exists() else {}

    def write(
        self,
        sources: Sequence[PromptSource],
        num_tokens: int,
        self_weight: int = 0,
        on_progress: Callable[[int], None] = lambda total: None,
    ) -> list[Answer]:
        """Answer prompts until the cache holds ``num_tokens`` of such answers' tokens or no prompt is left.

        Returns everything in the cache, in its order.

        Parameters
        ----------
        self_weight : int
            Share of user turns that the target itself writes, as ``weight`` of a source (0: none).
        on_progress : callable
            Told the number of answer tokens so far.
        """
        self._check(sources)
        jobs = self._jobs(sources, self_weight)
        running: dict[str, tuple[_Job, list[int], list[int]]] = {}
        asked = such_answers(list(self.known.values()), source_names(sources, self_weight), self.temperatures)
        total = count_tokens(asked)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_broken_end(self.path)
        with self.path.open("a", encoding="utf-8") as file:
            while True:
                while len(running) < self.engine.config.max_num_seqs and total < num_tokens:
                    job = next(jobs, None)
                    if job is None:
                        break
                    self._submit(job, running)
                if not running:
                    return list(self.known.values())
                for delta in self.engine.step():
                    job, prompt, output = running[delta.request_id]
                    output.extend(delta.token_ids)
                    if delta.finish_reason is None:
                        continue
                    del running[delta.request_id]
                    if delta.finish_reason == "error":
                        continue
                    answer = Answer(job.turn_id, prompt, output)
                    self.known[answer.id] = answer
                    file.write(json.dumps(asdict(answer)) + "\n")
                    file.flush()
                    total += len(output)
                    on_progress(total)
                    following = self._next_job(job, output)
                    if following is not None and following.turn_id not in self.known:
                        self._submit(following, running)

    def _jobs(self, sources: Sequence[PromptSource], self_weight: int) -> Iterator[_Job]:
        everything = list(sources)
        if self_weight:
            # as many as a source can have: the others run out first
            everything.append(PromptSource(WRITTEN_BY_TARGET, [[]] * 1_000_000, self_weight))
        for name, turns in mix(everything):
            for temperature in self.temperatures:
                job: _Job | None = _Job(name, temperature, turns, [])
                while job is not None and job.turn_id in self.known:
                    job = self._next_job(job, self.known[job.turn_id].output_token_ids)
                if job is not None:
                    yield job

    def _submit(self, job: _Job, running: dict[str, tuple[_Job, list[int], list[int]]]) -> None:
        tokenizer = self.engine.tokenizer
        written_by_target = not job.turns
        if written_by_target:
            prompt = self._user_turn_opening()
            params = SamplingParams(temperature=1.0, top_p=0.95, seed=_seed(job), max_tokens=_MAX_USER_TURN)
        else:
            messages = [*job.messages, {"role": "user", "content": job.turns[len(job.messages) // 2]}]
            prompt = list(
                tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]  # type: ignore[call-overload, index, arg-type]
            )
            top_p = 0.95 if job.temperature else 1.0
            params = SamplingParams(
                temperature=job.temperature, top_p=top_p, seed=_seed(job), max_tokens=self.max_tokens
            )
        if len(prompt) + self.max_tokens > self.engine.max_model_len:
            return
        self.engine.add_request(prompt, params, job.turn_id)
        running[job.turn_id] = (job, prompt, [])

    def _next_job(self, job: _Job, output: list[int]) -> _Job | None:
        """The conversation's next turn, or the question that the target has just written; None if there is neither."""
        if not output or output[-1] not in self.engine.eos_token_ids:
            return None
        text = str(self.engine.tokenizer.decode(output, skip_special_tokens=True)).strip()
        if not text:
            return None
        if not job.turns:
            return _Job(f"{job.id}q", job.temperature, [text], [])
        if len(job.messages) // 2 + 1 == len(job.turns):
            return None
        question = {"role": "user", "content": job.turns[len(job.messages) // 2]}
        messages = [*job.messages, question, {"role": "assistant", "content": text}]
        return _Job(job.id, job.temperature, job.turns, messages)

    def _check(self, sources: Sequence[PromptSource]) -> None:
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1 or name == WRITTEN_BY_TARGET})
        if twice:
            raise ConfigError(
                f"prompts {', '.join(twice)}: two files of one name would be taken for one another (and "
                f"{WRITTEN_BY_TARGET!r} is the target's own); rename one"
            )
        if self.max_tokens >= self.engine.max_model_len:
            raise ConfigError(
                f"answers of {self.max_tokens} tokens do not fit the {self.engine.max_model_len} positions of the "
                "target; lower --max-tokens"
            )

    def _user_turn_opening(self) -> list[int]:
        """The chat template up to where the user begins to speak."""
        tokenizer = self.engine.tokenizer
        text = str(tokenizer.apply_chat_template([{"role": "user", "content": _PLACEHOLDER}], tokenize=False))
        if _PLACEHOLDER not in text:
            raise ConfigError(
                "the target's chat template hides the user's text, so the target cannot write prompts itself; "
                "train with --self-prompts 0"
            )
        return list(tokenizer(text.split(_PLACEHOLDER)[0], add_special_tokens=False)["input_ids"])


def source_names(sources: Sequence[PromptSource], self_weight: int) -> set[str]:
    """What answers to these prompts are named after."""
    return {source.name for source in sources} | ({WRITTEN_BY_TARGET} if self_weight else set())


def such_answers(answers: Sequence[Answer], sources: Collection[str], temperatures: Sequence[float]) -> list[Answer]:
    """The answers to prompts from these sources, drawn at these temperatures."""
    return [answer for answer in answers if answer.source in sources and answer.temperature in temperatures]


def count_tokens(answers: Sequence[Answer]) -> int:
    """Tokens that the target wrote."""
    return sum(len(answer.output_token_ids) for answer in answers)


def read_answers(path: Path) -> list[Answer]:
    """Read a cache; a last line that a crash cut short is dropped.

    Raises
    ------
    ConfigError
        A line other than the last is not an answer.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    answers = []
    for number, line in enumerate(lines, start=1):
        try:
            row: dict[str, Any] = json.loads(line)
            answers.append(Answer(**row))
        except (json.JSONDecodeError, TypeError) as error:
            if number == len(lines):  # what follows the last line break: nothing, or a line cut short
                break
            raise ConfigError(
                f"{path} line {number} is not an answer ({error}); delete the file to begin again"
            ) from error
    return answers


def _drop_broken_end(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        path.write_bytes(data[: data.rfind(b"\n") + 1])


def _seed(job: _Job) -> int:
    return int.from_bytes(blake2b(job.turn_id.encode(), digest_size=7).digest(), "little")
