"""How long prompts and answers are."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from adaverify.config import EngineConfig
from adaverify.lab.replay import Prompts, Rounds, Traffic
from adaverify.lab.trace.trace import Ints

# of a server that was told nothing else
_MAX_BATCHED_TOKENS: int = EngineConfig.model_fields["max_num_batched_tokens"].default


@dataclass(frozen=True)
class Lengths:
    """Mean tokens of a request.

    Attributes
    ----------
    input_len, output_len : float
        Of the prompt, and of the answer.
    """

    input_len: float
    output_len: float

    @classmethod
    def recorded(cls, rounds: Rounds) -> Lengths:
        """As the contexts of each request's first and last round tell.

        A request drafts first when its prompt has given one token, and its last round adds what was accepted and one
        more.
        """
        first, context = rounds.first, rounds.blocks.context
        last = first + rounds.lengths - 1
        prompt = _recorded_prompts(rounds)
        return cls(float(np.mean(prompt)), float(np.mean(context[last] + rounds.num_accepted[last] + 1 - prompt)))

    def changed(self, input_len: float | None = None, output_len: float | None = None) -> Lengths:
        """With what is given in place of its own."""
        return Lengths(
            self.input_len if input_len is None else input_len, self.output_len if output_len is None else output_len
        )

    def prompts(self, rounds: Rounds, traffic: Traffic, seed: int = 0) -> Prompts | None:
        """The prompts to play beside ``traffic``: of the recorded lengths, scaled to the mean.

        A step reads what the engine's default leaves beside one token a seat, or what can come in a step if that is
        more, since here no seat stops decoding while prompts wait.

        Returns
        -------
        Prompts or None
            None where there is nothing to play: one user, whose prompts have steps to themselves, no prompts, or
            nothing decoded.
        """
        decoded, seats = self.output_len - 1, traffic.num_seats
        if seats == 1 or self.input_len == 0 or decoded <= 0:
            return None
        recorded = np.maximum(_recorded_prompts(rounds), 1)
        scaled = np.maximum(np.rint(recorded * (self.input_len / recorded.mean())), 1).astype(np.int64)
        a_round = 1 + rounds.num_speculative_tokens
        most = max(_MAX_BATCHED_TOKENS - seats, ceil(seats * a_round / decoded * self.input_len))
        return Prompts.draw(scaled, decoded, traffic.num_rounds * a_round, most, seed)


def _recorded_prompts(rounds: Rounds) -> Ints:
    """Tokens of each request's prompt."""
    return np.asarray(rounds.blocks.context[rounds.first] - 1)
