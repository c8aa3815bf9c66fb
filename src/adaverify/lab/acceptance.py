"""How many of its drafts a target accepts, position by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from adaverify.engine.llm import LLM
from adaverify.engine.stats import EngineStats
from adaverify.errors import RequestFailedError
from adaverify.sampling.params import SamplingParams


@dataclass(frozen=True)
class Acceptance:
    """What became of the drafts of one run.

    Attributes
    ----------
    rounds : int
        Request-rounds that had drafts.
    drafted, admitted, reached, accepted : list of int
        Drafts by position. A position is reached in a round when its draft is verified and all before it are
        accepted.
    tokens : int
        Tokens generated.
    seconds : float
    """

    rounds: int
    drafted: list[int]
    admitted: list[int]
    reached: list[int]
    accepted: list[int]
    tokens: int
    seconds: float

    @classmethod
    def between(cls, before: EngineStats, after: EngineStats, seconds: float) -> Acceptance:
        """What two snapshots of one engine's counters differ by."""

        def grown(name: str) -> list[int]:
            return [new - old for old, new in zip(getattr(before, name), getattr(after, name), strict=True)]

        return cls(
            rounds=after.num_draft_rounds - before.num_draft_rounds,
            drafted=grown("drafted"),
            admitted=grown("admitted"),
            reached=grown("observed"),
            accepted=grown("accepted"),
            tokens=after.generation_tokens - before.generation_tokens,
            seconds=seconds,
        )

    @property
    def given_reached(self) -> list[float | None]:
        """Accepted / reached by position; None where no round came so far."""
        return [_ratio(accepted, reached) for accepted, reached in zip(self.accepted, self.reached, strict=True)]

    @property
    def per_round(self) -> list[float | None]:
        """Accepted / rounds by position; the sum is the mean number of accepted drafts."""
        return [_ratio(accepted, self.rounds) for accepted in self.accepted]

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens by wall-clock time."""
        return self.tokens / self.seconds

    def mean(self, name: str) -> float:
        """Drafts per round that were ``drafted``, ``admitted`` or ``accepted``; 0 without rounds."""
        return sum(getattr(self, name)) / max(1, self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Counts and what follows from them, for JSON."""
        return {
            **vars(self),
            "accepted_given_reached": self.given_reached,
            "accepted_by_rounds": self.per_round,
            "accepted_per_round": self.mean("accepted"),
            "tokens_per_second": self.tokens_per_second,
        }


def measure_acceptance(llm: LLM, prompts: Sequence[list[int]], params: SamplingParams) -> Acceptance:
    """Complete ``prompts`` together, as many at a time as the engine has seats, and count.

    Parameters
    ----------
    llm : LLM
        With a drafter; every draft is verified unless adaptive verification is on.
    prompts : sequence of list of int
    params : SamplingParams

    Raises
    ------
    RequestFailedError
        A completion failed, so that the counts would mean little.
    """
    before, start = llm.stats(), perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = perf_counter() - start
    errors = [completion.error for output in outputs for completion in output.outputs if completion.error]
    if errors:
        raise RequestFailedError(f"{len(errors)} of {len(prompts)} completions failed; the first: {errors[0]}")
    return Acceptance.between(before, llm.stats(), seconds)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
