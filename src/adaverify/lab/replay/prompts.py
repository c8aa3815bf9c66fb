"""Prompts that steps read beside what they decode.

They come by decoded tokens, one for as many as an answer has, not where a seat begins another recorded request: those
were as long, in rounds, as the recorded number of drafts made them, and an arm that decodes fewer tokens a round would
read more prompts than it serves. Ends of many seats' answers are nearly without memory, so gaps are exponential.
A request decodes in the steps that read its prompt, too, and what the drafter reads of it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from adaverify.lab.trace.trace import Floats, Ints


class Reading(NamedTuple):
    """What each of T steps reads of prompts, int64 [T]: tokens, and how many prompts end there and give a token."""

    tokens: Ints
    ended: Ints

    @classmethod
    def none(cls, num_steps: int) -> Reading:
        """Of steps that only decode."""
        return cls(*np.zeros((2, num_steps), dtype=np.int64))


@dataclass(frozen=True)
class Prompts:
    """A queue of prompts.

    Attributes
    ----------
    due : float64 [P]
        Tokens that are decoded, over all seats, before each is read; rising.
    lengths : int64 [P]
        Tokens of each, 1 at least.
    most : int
        Tokens that a step reads at most; what is left waits for the next.
    """

    due: Floats
    lengths: Ints
    most: int

    @classmethod
    def draw(cls, lengths: Ints, decoded: float, num_tokens: int, most: int, seed: int) -> Prompts:
        """Prompts of these lengths in any order, one for ``decoded`` tokens in the mean, until ``num_tokens`` are."""
        rng = np.random.default_rng(seed)
        # more than enough: what is due later is never read
        count = 64 + int(1.25 * num_tokens / decoded)
        return cls(rng.exponential(decoded, count).cumsum(), rng.choice(lengths, count), most)

    @cached_property
    def total(self) -> Ints:
        """Tokens of the first 0 to P prompts, [P + 1]."""
        return np.concatenate([[0], self.lengths.cumsum()])


class PromptReader:
    """Reads a queue of prompts, step after step.

    Parameters
    ----------
    prompts : Prompts
    """

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._decoded = 0
        self._read = 0

    def read(self) -> Reading:
        """Read what is due in the next step."""
        prompts = self._prompts
        owed = int(prompts.total[np.searchsorted(prompts.due, self._decoded, side="right")]) - self._read
        tokens = min(owed, prompts.most)
        before, after = np.searchsorted(prompts.total, [self._read, self._read + tokens], side="right")
        self._read += tokens
        return Reading(np.array([tokens]), np.array([after - before]))

    def decoded(self, num_tokens: int) -> None:
        """Count what that step decoded."""
        self._decoded += num_tokens

    def read_beside(self, num_tokens: Ints) -> Reading:
        """Read what is due in each of T steps, which decode so many tokens, int64 [T]."""
        readings = []
        for count in num_tokens.tolist():
            readings.append(self.read())
            self.decoded(count)
        return Reading(*(np.concatenate(values) for values in zip(*readings, strict=True)))
