"""How long prompts and answers are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adaverify.lab.replay.rounds import Rounds


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
        prompt = context[first] - 1
        return cls(float(np.mean(prompt)), float(np.mean(context[last] + rounds.num_accepted[last] + 1 - prompt)))

    def changed(self, input_len: float | None = None, output_len: float | None = None) -> Lengths:
        """With what is given in place of its own."""
        return Lengths(
            self.input_len if input_len is None else input_len, self.output_len if output_len is None else output_len
        )
