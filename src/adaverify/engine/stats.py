"""Counters of the engine: what /metrics, the lab and the tests read."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaverify.policy.live_costs import LiveCosts

PARTS = ("schedule", "policy", "target", "sample", "draft", "record", "output")


@dataclass
class EngineStats:
    """Snapshot of the engine's counters; all counts grow from zero at start.

    Drafted, admitted and accepted are counted apart: acceptance is accepted / admitted, never
    accepted / drafted.

    Attributes
    ----------
    num_requests_running, num_requests_waiting : int
        Gauges.
    kv_cache_usage : float
        Share of the KV blocks in use, 0 to 1.
    prefix_cache_queries, prefix_cache_hits : int
        Prompt tokens looked up and found.
    num_preemptions : int
    prompt_tokens, generation_tokens : int
    finished : dict of str to int
        Finished completions by reason.
    num_steps : int
    num_verify_rounds : int
        Request-rounds in which at least one draft was admitted.
    num_draft_rounds : int
        Request-rounds that had drafts, admitted or not.
    drafted, admitted, accepted : list of int
        Drafts by position (length K).
    observed : list of int
        Drafts with a label, by position.
    predicted_sum : list of float
        Sum of the predictions made for the observed drafts, by position.
    draft_budget : int
        The budget of the last step.
    num_draftable_steps : int
        Steps in which some request could have used a draft.
    num_undrafted_steps : int
        Those of them that drafted nothing.
    draft_depth_sum : int
        Depth drafted, summed over them.
    estimator_slope : float, optional
    estimator_intercepts : list of float, optional
    step_ms : float, optional
        Milliseconds of the latest step whose whole time is known, with all that lies between it and the next.
    predicted_step_ms : dict of str to float
        What that step was expected to take: by the ``live`` costs, learned from the steps before it, and by the
        ``startup`` table.
    step_error_percent : dict of str to float
        Median absolute error of the latest 500 such predictions, in % of what was measured.
    seconds : dict of str to float
        Time spent per part of the step: ``schedule``, ``policy``, ``target``, ``sample``, ``draft``, ``record``
        (telling an observer), ``output``.
    """

    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    num_steps: int = 0
    num_verify_rounds: int = 0
    num_draft_rounds: int = 0
    drafted: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    observed: list[int] = field(default_factory=list)
    predicted_sum: list[float] = field(default_factory=list)
    draft_budget: int = 0
    num_draftable_steps: int = 0
    num_undrafted_steps: int = 0
    draft_depth_sum: int = 0
    estimator_slope: float | None = None
    estimator_intercepts: list[float] | None = None
    step_ms: float | None = None
    predicted_step_ms: dict[str, float] = field(default_factory=dict)
    step_error_percent: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def start(cls, num_speculative_tokens: int) -> EngineStats:
        """Counters at zero for K draft positions."""
        zeros = [0] * num_speculative_tokens
        return cls(
            drafted=list(zeros),
            admitted=list(zeros),
            accepted=list(zeros),
            observed=list(zeros),
            predicted_sum=[0.0] * num_speculative_tokens,
            seconds=dict.fromkeys(PARTS, 0.0),
        )

    @property
    def mean_draft_depth(self) -> float:
        """Depth drafted, over the steps that could draft; 0 without any."""
        return self.draft_depth_sum / max(1, self.num_draftable_steps)

    def copy(self) -> EngineStats:
        """Counters of this moment, which no later step changes."""
        return copy.deepcopy(self)

    def add_draft_depth(self, depth: int) -> None:
        """Count a step that could draft, and did to ``depth``."""
        self.num_draftable_steps += 1
        self.num_undrafted_steps += depth == 0
        self.draft_depth_sum += depth

    def add_round(
        self, drafted: np.ndarray, admitted: np.ndarray, accepted: np.ndarray, predictions: np.ndarray
    ) -> None:
        """Count one round of R requests.

        Parameters
        ----------
        drafted, admitted, accepted : ndarray [R], int
            Drafts of each request.
        predictions : ndarray [R, K], float
            Predicted acceptance of each draft.
        """
        observed = np.minimum(accepted + 1, admitted)
        for i in range(len(self.drafted)):
            self.drafted[i] += int((drafted > i).sum())
            self.admitted[i] += int((admitted > i).sum())
            self.accepted[i] += int((accepted > i).sum())
            self.observed[i] += int((observed > i).sum())
            self.predicted_sum[i] += float(predictions[observed > i, i].sum())
        self.num_draft_rounds += int((drafted > 0).sum())
        self.num_verify_rounds += int((admitted > 0).sum())


def cost_stats(costs: LiveCosts | None) -> dict[str, Any]:
    """The fields of :class:`EngineStats` that tell what steps take and were expected to."""
    if costs is None or costs.latest is None:
        return {}
    latest = costs.latest
    return {
        "step_ms": latest.time.total_ms,
        "predicted_step_ms": {"live": latest.live_ms, "startup": latest.startup_ms},
        "step_error_percent": {
            "live": costs.live_errors.median_percent,
            "startup": costs.startup_errors.median_percent,
        },
    }
