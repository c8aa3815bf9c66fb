"""Tokens per second of one arm at one load: a replay's decoding, and the prompts on top."""

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
        What the prompt of one request adds to the steps it is packed into.
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
        packed = (decoding.rounds + decoding.admitted) / decoding.num_steps
        # one user's prompt has a step to itself; those of many share the steps in which others decode
        beside = 0 if result.concurrency == 1 else round(packed)
        return cls(arm, result.concurrency, decoding, _prefill_ms(costs, round(lengths.input_len), beside), lengths)

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of all users: a request's first token comes with its prompt, the others decode."""
        decoding_ms = (self.lengths.output_len - 1) / self.decoding.tokens_per_second * 1e3
        return 1e3 * self.lengths.output_len / (decoding_ms + self.prefill_ms)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "arm": self.arm,
            "max_concurrency": self.concurrency,
            "tokens_per_second": self.tokens_per_second,
            "decode_tokens_per_second": self.decoding.tokens_per_second,
            "prefill_ms": self.prefill_ms,
            "step_ms": self.decoding.cost_ms / self.decoding.num_steps,
            **{f"{count}_per_round": self.decoding.per_round(count) for count in ("drafted", "admitted", "accepted")},
        }


def _prefill_ms(costs: CostTable, num_tokens: int, beside: int) -> float:
    if num_tokens == 0:
        return 0.0
    verify = costs.verify.table(beside + num_tokens)
    return float(verify[-1] - verify[beside]) if beside else float(verify[-1])
