"""Tokens per second of one arm at one load: a replay's decoding, and the prompts read beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adaverify.lab.plan.lengths import Lengths
from adaverify.lab.replay.result import ReplayResult, Window
from adaverify.policy.cost import CostTable

AV = "av"
# of the steps: what adaptive verification learns meanwhile counts for no arm, as with the warm-up of a server
WARM_UP = 0.25


def fixed_arm(depth: int) -> str:
    """Name of the arm that drafts and verifies ``depth`` tokens a round, as ``adaverify bench`` has it."""
    return f"k{depth}"


@dataclass(frozen=True)
class Prediction:
    """One arm at one load.

    Attributes
    ----------
    arm : str
        ``k0``, ``k1``, ... or ``av``.
    concurrency : int
    decoding : Window
        The replay after its warm-up.
    prefill_ms : float
        What the prompt of one request adds to the steps it is packed into, as they decided to verify.
    lengths : Lengths
    """

    arm: str
    concurrency: int
    decoding: Window
    prefill_ms: float
    lengths: Lengths

    @classmethod
    def of(cls, arm: str, result: ReplayResult, costs: CostTable, lengths: Lengths) -> Prediction:
        """From a replay at the same costs."""
        steps = result.steps
        start = int(WARM_UP * len(steps))
        decoding = Window.of(steps.part(start, len(steps)), start)
        prefill_ms = _prefill_ms(decoding, result.concurrency, costs, lengths)
        return cls(arm, result.concurrency, decoding, prefill_ms, lengths)

    @property
    def decode_tokens_per_second(self) -> float:
        """Tokens decoded per second of all that prompts did not add."""
        return 1e3 * self.decoding.tokens / (self.decoding.cost_ms - self.decoding.prompt_ms)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of all users: a request's first token comes with its prompt, the others decode."""
        decoding_ms = (self.lengths.output_len - 1) / self.decode_tokens_per_second * 1e3
        return 1e3 * self.lengths.output_len / (decoding_ms + self.prefill_ms)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "arm": self.arm,
            "max_concurrency": self.concurrency,
            "tokens_per_second": self.tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "prefill_ms": self.prefill_ms,
            "step_ms": self.decoding.cost_ms / self.decoding.num_steps,
            **{f"{count}_per_round": self.decoding.per_round(count) for count in ("drafted", "admitted", "accepted")},
        }


def _prefill_ms(decoding: Window, concurrency: int, costs: CostTable, lengths: Lengths) -> float:
    if decoding.prompt_tokens:
        return decoding.prompt_ms / decoding.prompt_tokens * lengths.input_len
    num_tokens = round(lengths.input_len)
    if num_tokens == 0:
        return 0.0
    # one user's prompt has a step to itself; of many, none was read in a replay so short: beside what a step packs
    packed = (decoding.rounds + decoding.admitted) / decoding.num_steps
    beside = 0 if concurrency == 1 else round(packed)
    verify = costs.verify.table(beside + num_tokens)
    return float(verify[-1] - verify[beside]) if beside else float(verify[-1])
