"""Play a policy over recorded rounds and keep account."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adaverify.lab.replay.costs import Prices
from adaverify.lab.replay.policies import Decision, Policy, Setting, Stretch, make_policy
from adaverify.lab.replay.prompts import PromptReader
from adaverify.lab.replay.result import Refit, ReplayResult, StepLog
from adaverify.lab.replay.rounds import Rounds
from adaverify.lab.replay.traffic import Traffic
from adaverify.lab.trace.trace import Floats, Ints
from adaverify.policy.cost import CostTable


def replay(
    rounds: Rounds,
    policy: str | Policy,
    costs: CostTable,
    concurrency: int | None = None,
    seed: int | None = None,
    *,
    traffic: Traffic | None = None,
    decide_by: CostTable | None = None,
) -> ReplayResult:
    """Feed rounds through a policy, without a model.

    Parameters
    ----------
    rounds : Rounds
    policy : str or Policy
        A name for :func:`~adaverify.lab.replay.policies.make_policy`, or a policy of your own, unused as yet.
    costs : CostTable
        What the rounds are charged.
    concurrency : int, optional
        Seats; as recorded by default.
    seed : int, optional
        Shuffles the requests.
    traffic : Traffic, optional
        In place of ``concurrency`` and ``seed``: for a load that varies, rounds that are used several times, or
        prompts.
    decide_by : CostTable, optional
        What the policy believes the costs to be; ``costs`` by default.

    Raises
    ------
    ConfigError
        No such policy, or a load that cannot be played, by the policy or at all.
    TraceError
        The trace lacks what the policy reads.
    """
    if traffic is None:
        traffic = Traffic.build(rounds, concurrency or rounds.recorded_concurrency, seed)
    most = 0 if traffic.prompts is None else traffic.prompts.most
    prices = Prices.of(costs, rounds, traffic.num_seats, most)
    if isinstance(policy, str):
        believed = prices if decide_by is None else Prices.of(decide_by, rounds, traffic.num_seats, most)
        policy = make_policy(policy, Setting(rounds, believed, traffic.num_seats))
    table = _Table(rounds, prices)
    logs: list[StepLog] = []
    refits: list[Refit] = []
    reader = None if traffic.prompts is None else PromptReader(traffic.prompts)
    heeded = reader if policy.heeds_prompts else None
    for first, stretch in _stretches(rounds, traffic, policy.steps_ahead if heeded is None else 1):
        if heeded is not None:
            stretch = replace(stretch, reading=heeded.read())
        before = policy.coefficients
        if before is not None and (not refits or before.num_refits > refits[-1].num_refits):
            refits.append(Refit(first, *before))
        decision = table.carry_out(stretch, policy.decide(stretch))
        accepted = np.minimum(table.num_accepted(stretch), decision.admitted)
        policy.observe(stretch, decision, accepted)
        tokens = stretch.num_requests + accepted.sum(axis=1)
        if heeded is not None:
            heeded.decoded(int(tokens[0]))
        elif reader is not None:
            stretch = replace(stretch, reading=reader.read_beside(tokens))
        logs.append(table.account(stretch, decision, accepted))
    return ReplayResult(
        policy=policy.name,
        lossless=policy.lossless or rounds.info.is_coupled,
        attainable=policy.attainable,
        concurrency=traffic.num_seats,
        num_speculative_tokens=rounds.num_speculative_tokens,
        steps=StepLog.concatenate(logs),
        refits=tuple(refits),
    )


def _stretches(rounds: Rounds, traffic: Traffic, steps_ahead: int | None) -> Iterator[tuple[int, Stretch]]:
    size = steps_ahead or traffic.num_steps
    for first in range(0, traffic.num_steps, size):
        steps = slice(first, first + size)
        yield first, Stretch(rounds.blocks, traffic.rounds[steps], traffic.started[steps])


@dataclass(frozen=True)
class _Table:
    """The engine's side: what can be verified, what comes of it, what it costs."""

    rounds: Rounds
    prices: Prices

    def num_accepted(self, stretch: Stretch) -> Ints:
        """Drafts [T, N] accepted if all are verified; kept from the policy."""
        return np.where(stretch.active, self.rounds.num_accepted[stretch.rounds], 0)

    def carry_out(self, stretch: Stretch, decision: Decision) -> Decision:
        """Hold a decision to what was drafted, and can be verified."""
        can = np.where(stretch.active, self.rounds.num_verified[stretch.rounds], 0)
        depth = np.where(stretch.active, decision.depth, 0)
        return replace(decision, depth=depth, admitted=np.minimum(decision.admitted, np.minimum(can, depth)))

    def account(self, stretch: Stretch, decision: Decision, accepted: Ints) -> StepLog:
        """Count, charge, and compare predictions with outcomes."""
        num_admitted = decision.admitted.sum(axis=1)
        calibration: dict[str, Any] = _calibration(stretch, decision, accepted)
        budget = num_admitted if decision.budget is None else decision.budget
        verify_ms = self.prices.verify_ms(stretch.num_non_draft + num_admitted)
        return StepLog(
            num_requests=stretch.num_requests,
            drafted=np.minimum(decision.depth, stretch.num_drafts).sum(axis=1),
            budget=budget,
            admitted=num_admitted,
            accepted=accepted.sum(axis=1),
            draft_ms=self.prices.draft_ms(decision.depth),
            verify_ms=verify_ms,
            prompt_tokens=stretch.prompts.tokens,
            prompt_ms=verify_ms - self.prices.verify_ms(stretch.num_requests + num_admitted),
            **calibration,
        )


def _calibration(stretch: Stretch, decision: Decision, accepted: Ints) -> dict[str, Floats]:
    """Sums over the labelled drafts of each step, [T]."""
    labels, predicted, observed, log_loss = np.zeros((4, len(accepted)))
    if decision.predictions is not None:
        positions = np.arange(decision.predictions.shape[-1])
        was_accepted = positions < accepted[..., None]
        labelled = (positions <= accepted[..., None]) & (positions < decision.admitted[..., None])
        labelled &= stretch.telling[..., None] & np.isfinite(decision.predictions)
        # As scikit-learn does: certainty that turns out wrong costs much, not everything.
        eps = np.finfo(np.float32).eps
        chance = np.clip(np.where(labelled, decision.predictions, 0.5).astype(np.float64), eps, 1 - eps)
        loss = np.where(was_accepted, -np.log(chance), -np.log1p(-chance))
        labels = labelled.sum(axis=(1, 2)).astype(np.float64)
        predicted = np.where(labelled, decision.predictions, 0.0).sum(axis=(1, 2), dtype=np.float64)
        observed = (labelled & was_accepted).sum(axis=(1, 2)).astype(np.float64)
        log_loss = np.where(labelled, loss, 0.0).sum(axis=(1, 2))
    return {"labels": labels, "predicted": predicted, "observed": observed, "log_loss": log_loss}
