"""The start-up cost table, kept true by the steps that are served."""

from __future__ import annotations

import torch

from adaverify.errors import ConfigError
from adaverify.policy.cost import CostTable, MaterializedCosts
from adaverify.policy.part_costs import DraftCosts, RoundCosts
from adaverify.policy.step import RecentErrors, StepReport, StepSize, StepTime


class LiveCosts:
    """Costs of a step by packed tokens, prompt tokens, requests, context and depth, learned from served steps.

    They start from the start-up table and follow what whole steps really take; see
    :class:`~adaverify.policy.cost_filter.CostFilter` for how, and what outliers do (nothing). Costs are positive,
    never fall with any size, and sizes that are not visited keep the shape of the start-up curve, at the present
    speed. Memory is O(1) in the number of steps.

    What is learned from the steps before may price the present one (docs/algorithm.md, rule 5). So a step is to be
    observed when it is over, and :meth:`at` to be asked of lengths alone.

    Parameters
    ----------
    start : CostTable
    max_requests, max_tokens : int
        Largest batch and step.
    num_speculative_tokens : int
        K, the deepest drafting.

    Attributes
    ----------
    latest : StepReport, optional
        Of the step observed last.
    live_errors, startup_errors : RecentErrors
        How well the latest steps were predicted by what had been learned before, and by the start-up table.
    """

    def __init__(self, start: CostTable, max_requests: int, max_tokens: int, num_speculative_tokens: int = 1) -> None:
        tables = start.materialize(max_requests, max_tokens, num_speculative_tokens=num_speculative_tokens)
        self._limits = (max_requests, max_tokens)
        self._verify = tables.verify.numpy()
        self._draft_start = tables.draft.numpy()
        self._round = RoundCosts(self._verify)
        # where drafting is free there is nothing to scale: what it takes is part of the round
        self._draft = DraftCosts(self._draft_start) if bool((self._draft_start > 0).any()) else None
        self.latest: StepReport | None = None
        self.live_errors, self.startup_errors = RecentErrors(), RecentErrors()

    def predict(self, size: StepSize) -> float:
        """Milliseconds of a whole step."""
        self._check(size)
        drafting = self._draft.filter.predict(self._draft.features(size)) if self._draft else 0.0
        return self._round.filter.predict(self._round.features(size)) + drafting

    def predict_startup(self, size: StepSize) -> float:
        """Milliseconds of a whole step by the start-up table."""
        self._check(size)
        return float(self._verify[size.packed_tokens]) + (self._draft.startup(size) if self._draft else 0.0)

    def observe(self, size: StepSize, time: StepTime) -> None:
        """Learn from a step that is over; times that are not finite, or negative, are ignored.

        Raises
        ------
        ConfigError
            The step is larger than the tables, or has no token.
        """
        self._check(size)
        if not time.is_sound:
            return
        features = self._round.features(size)
        expected = self._round.filter.predict(features)
        drafting, drafted = self._observe_drafting(size, time)
        self._report(StepReport(size, time, expected + drafting, self.predict_startup(size)))
        self._round.filter.observe(features, time.total_ms - drafted, expected, self._round.kind(size))

    def at(self, size: StepSize, device: torch.device | str = "cpu") -> MaterializedCosts:
        """Tables for the budget of a step.

        Parameters
        ----------
        size : StepSize
            Of the step without drafts.
        device : torch.device

        Returns
        -------
        MaterializedCosts
            ``verify`` holds whatever does not depend on drafting; ``draft`` has the shape of the start-up table's.
        """
        self._check(size)
        verify, draft = self._round.table(size), self._draft_start
        if self._draft is not None:
            verify += self._draft.prompt_ms(size)
            draft = self._draft.table(size)
        # not blocking: the host need not wait for what a device has still to do
        tables = (torch.from_numpy(table).to(device, non_blocking=True) for table in (draft, verify))
        return MaterializedCosts(*tables)

    def _observe_drafting(self, size: StepSize, time: StepTime) -> tuple[float, float]:
        """Learn what drafting takes; returns what was expected of it, and what it took, in milliseconds."""
        if self._draft is None:
            return 0.0, 0.0
        features = self._draft.features(size)
        expected = self._draft.filter.predict(features)
        if self._draft.startup(size) <= 0:
            # nothing was drafted: all the drafter may have done is read prompts, which is not told apart
            return expected, expected
        if not size.backlog_tokens:
            # else much of it was reading the past, of which too little is seen to tell the two apart
            self._draft.filter.observe(features, time.draft_ms, expected, self._draft.kind(size))
        return expected, time.draft_ms

    def _report(self, report: StepReport) -> None:
        measured = report.time.total_ms
        self.live_errors.add(report.live_ms, measured)
        self.startup_errors.add(report.startup_ms, measured)
        self.latest = report

    def _check(self, size: StepSize) -> None:
        max_requests, max_tokens = self._limits
        fits = 0 < size.packed_tokens <= max_tokens and 0 <= size.requests <= max_requests
        fits &= size.depth < len(self._draft_start)
        if not (fits and 0 <= size.prefill_tokens <= size.packed_tokens):
            raise ConfigError(
                f"live costs reach up to {max_requests} requests and {max_tokens} packed tokens, prompts included; got "
                f"{size}"
            )
