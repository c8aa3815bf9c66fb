"""Measures whole steps, for the costs that adaptive verification works with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from adaverify.engine.scheduler import StepPlan
from adaverify.policy.step import StepSize, StepTime

Listener = Callable[[StepSize, StepTime], None]


def backlog_tokens(plan: StepPlan) -> int:
    """What the drafter has yet to read of the decoding requests, beyond what a round leaves it to read."""
    ordinary = 1 + max(plan.num_drafts, default=0)
    return sum(max(0, request.num_tokens - request.num_draft_computed - ordinary) for request in plan.decodes)


def step_size(plan: StepPlan, num_drafts: int = 0, depth: int = 0, backlog: int = 0) -> StepSize:
    """Size of a step that verifies ``num_drafts`` of the drafts made ``depth`` deep; lengths alone.

    The requests must still hold the tokens from before the step; ``backlog`` is :func:`backlog_tokens` before drafting.
    """
    return StepSize(
        packed_tokens=plan.num_non_draft_tokens + num_drafts,
        requests=len(plan.decodes),
        context_tokens=sum(request.num_tokens for request in plan.decodes),
        prefill_tokens=sum(chunk.num_tokens for chunk in plan.chunks),
        prefill_pairs=sum(chunk.num_tokens * (chunk.start + chunk.end + 1) // 2 for chunk in plan.chunks),
        depth=depth,
        backlog_tokens=backlog,
    )


@dataclass(frozen=True)
class _Finished:
    """A step whose total is not known before the next one begins."""

    size: StepSize
    began: float
    draft: float
    verify: float
    excluded: float


class StepTimer:
    """Times a step from its start to that of the next, or to where nothing is left to do.

    On an accelerator work is only queued when a call returns. All that is read here are times at which the engine
    has just waited for the device anyway: drafting ends when the host reads how many drafts are admitted, the step
    when it reads what was sampled. No wait is added.

    Parameters
    ----------
    listener : callable, optional
        Told of every step's size and time.
    clock : callable
        Seconds, from any origin.
    """

    def __init__(self, listener: Listener | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._listener = listener
        self.clock = clock
        self._began = 0.0
        self._drafted = 0.0
        self._policy_before = 0.0
        self._size: StepSize | None = None
        self._before: Mapping[str, float] = {}
        self._finished: _Finished | None = None

    def begin(self, seconds: Mapping[str, float]) -> None:
        """A step begins, and the one before is over; ``seconds`` is the time spent by part so far, as a copy."""
        now = self.clock()
        self._tell(now)
        self._began = self._drafted = now
        self._before = seconds

    def drafted(self, size: StepSize, seconds: Mapping[str, float]) -> None:
        """The drafts are made, and how many of them are verified is known, and with it the size of the step."""
        self._drafted = self.clock()
        self._size = size
        self._policy_before = seconds["policy"]

    def end(self, seconds: Mapping[str, float]) -> None:
        """The step is done; what follows up to the next one is still its own."""
        assert self._size is not None
        spent = {part: seconds[part] - self._before[part] for part in ("target", "sample", "record")}
        learning = seconds["policy"] - self._policy_before
        self._finished = _Finished(
            self._size,
            began=self._began,
            draft=self._drafted - self._began + learning,
            verify=spent["target"] + spent["sample"],
            excluded=spent["record"],
        )

    def stop(self) -> None:
        """Nothing is left to do: the latest step is over, and what follows is waiting for requests."""
        self._tell(self.clock())

    def _tell(self, now: float) -> None:
        step, self._finished = self._finished, None
        if step is None or self._listener is None:
            return
        other = now - step.began - step.draft - step.verify - step.excluded
        self._listener(step.size, StepTime(1e3 * step.draft, 1e3 * step.verify, 1e3 * max(other, 0.0)))
