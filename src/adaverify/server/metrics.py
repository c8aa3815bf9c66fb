"""Prometheus metrics: vLLM's names, so that its dashboards and benchmarks work, and our own beside them.

Positions count from 0, as in vLLM. ``vllm:spec_decode_num_draft_tokens`` counts the drafts that were
*verified* (admitted), so that accepted / draft tokens is the acceptance; trimmed drafts are the difference
to ``adaverify:draft_tokens_drafted``. ``vllm:spec_decode_num_drafts`` counts request-rounds that had drafts,
also those where all were trimmed, so that 1 + accepted / drafts is the tokens a round yields.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from adaverify.engine.stats import EngineStats

if TYPE_CHECKING:
    from adaverify.engine.async_engine import AsyncEngine

FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Bucket bounds in seconds; the dashboards' quantiles assume vLLM's."""

FINISH_REASONS = ("stop", "length", "abort", "error")


class ServerMetrics:
    """All metrics of one server, in a registry of its own.

    Parameters
    ----------
    engine : AsyncEngine
        Its counters are read at every scrape.
    model_name : str
        Value of the ``model_name`` label.
    """

    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine, model_name))
        self.time_to_first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", FIRST_TOKEN_BUCKETS, model_name
        )
        self.inter_token_latency = self._histogram(
            "vllm:inter_token_latency_seconds", "Between two steps that gave tokens.", TOKEN_BUCKETS, model_name
        )
        self.time_per_output_token = self._histogram(
            "vllm:request_time_per_output_token_seconds",
            "First to last token, per token after the first.",
            TOKEN_BUCKETS,
            model_name,
        )
        self.e2e_latency = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token.", REQUEST_BUCKETS, model_name
        )

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float], model_name: str) -> Histogram:
        histogram = Histogram(name, documentation, ("model_name", "engine"), buckets=buckets, registry=self._registry)
        return histogram.labels(model_name, "0")

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


class RequestTimes:
    """The clock of one completion, started when its request arrives."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._arrival = time.perf_counter()
        self._first: float | None = None
        self._last = self._arrival
        self._num_tokens = 0

    def record(self, num_tokens: int, finished: bool) -> None:
        """Observe a step that gave ``num_tokens``; a step that gave none only counts if it is the last."""
        now = time.perf_counter()
        if num_tokens:
            if self._first is None:
                self._first = now
                self._metrics.time_to_first_token.observe(now - self._arrival)
            else:
                self._metrics.inter_token_latency.observe(now - self._last)
            self._last = now
            self._num_tokens += num_tokens
        if finished:
            self._metrics.e2e_latency.observe(now - self._arrival)
            if self._first is not None and self._num_tokens > 1:
                self._metrics.time_per_output_token.observe((self._last - self._first) / (self._num_tokens - 1))


class EngineCollector(Collector):
    """Turns a snapshot of the engine's counters into metrics, at every scrape."""

    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        self._engine = engine
        self._labels = {"model_name": model_name, "engine": "0"}

    def describe(self) -> list[Metric]:
        """Nothing up front: the positions are known once the engine runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        stats = self._engine.stats()
        yield from self._scheduling(stats)
        if self._engine.config.speculative_config is not None:
            yield from self._speculation(stats)
            yield from self._estimator(stats)
            yield from self._costs(stats)

    def _scheduling(self, stats: EngineStats) -> Iterator[Metric]:
        gauge, counter = self._gauge, self._counter
        yield gauge("vllm:num_requests_running", "Requests in the running batch.", stats.num_requests_running)
        yield gauge("vllm:num_requests_waiting", "Requests waiting for their turn.", stats.num_requests_waiting)
        yield gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all.", stats.kv_cache_usage)
        yield counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", stats.prefix_cache_queries)
        yield counter("vllm:prefix_cache_hits", "Prompt tokens found cached.", stats.prefix_cache_hits)
        yield counter("vllm:num_preemptions", "Requests sent back to waiting.", stats.num_preemptions)
        yield counter("vllm:prompt_tokens", "Prompt tokens processed.", stats.prompt_tokens)
        yield counter("vllm:generation_tokens", "Tokens generated.", stats.generation_tokens)
        finished = {reason: stats.finished.get(reason, 0) for reason in (*FINISH_REASONS, *stats.finished)}
        yield counter("vllm:request_success", "Finished completions by reason.", finished, "finished_reason")
        yield counter("adaverify:step_seconds", "Time spent per part of a step.", stats.seconds, "part")

    def _speculation(self, stats: EngineStats) -> Iterator[Metric]:
        counter = self._counter
        drafts = "Request-rounds that had drafts, verified or not."
        yield counter("vllm:spec_decode_num_drafts", drafts, stats.num_draft_rounds)
        yield counter("vllm:spec_decode_num_draft_tokens", "Drafts verified.", sum(stats.admitted))
        yield counter("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.", sum(stats.accepted))
        accepted = by_position(stats.accepted)
        per_position = "Drafts accepted, by position."
        yield counter("vllm:spec_decode_num_accepted_tokens_per_pos", per_position, accepted, "position")
        drafted, admitted = by_position(stats.drafted), by_position(stats.admitted)
        yield counter("adaverify:draft_tokens_drafted", "Drafts proposed.", drafted, "position")
        yield counter("adaverify:draft_tokens_admitted", "Drafts verified.", admitted, "position")
        yield counter("adaverify:draft_tokens_accepted", per_position, accepted, "position")
        yield self._gauge("adaverify:draft_budget", "Drafts the last step could verify.", stats.draft_budget)
        yield counter("adaverify:draftable_steps", "Steps that could draft.", stats.num_draftable_steps)
        yield counter("adaverify:undrafted_steps", "Those that drafted nothing.", stats.num_undrafted_steps)
        yield counter("adaverify:early_stops", "Those that ended their blocks early.", stats.num_early_stops)
        yield counter("adaverify:draft_depth", "Depth drafted, summed over these steps.", stats.draft_depth_sum)

    def _estimator(self, stats: EngineStats) -> Iterator[Metric]:
        gauge = self._gauge
        if stats.estimator_slope is not None:
            yield gauge("adaverify:estimator_slope", "Slope w of sigmoid(w f + b_i), at f = 0.", stats.estimator_slope)
        if stats.estimator_intercepts is not None:
            intercepts = by_position(stats.estimator_intercepts)
            yield gauge("adaverify:estimator_intercept", "Intercepts b_i.", intercepts, "position")
        predicted = mean_by_position(stats.predicted_sum, stats.observed)
        observed = mean_by_position(stats.accepted, stats.observed)
        yield gauge("adaverify:predicted_acceptance", "Mean prediction for labelled drafts.", predicted, "position")
        yield gauge("adaverify:observed_acceptance", "Share of labelled drafts accepted.", observed, "position")

    def _costs(self, stats: EngineStats) -> Iterator[Metric]:
        if stats.step_ms is None:
            return
        gauge = self._gauge
        yield gauge("adaverify:step_ms", "Milliseconds of the latest step, up to the next.", stats.step_ms)
        expected = "What that step was expected to take, by live costs and by the start-up table."
        yield gauge("adaverify:predicted_step_ms", expected, stats.predicted_step_ms, "costs")
        error = "Median absolute error of the latest 500 expectations, in percent."
        yield gauge("adaverify:step_error_percent", error, stats.step_error_percent, "costs")

    def _gauge(
        self, name: str, documentation: str, values: float | dict[str, float] | dict[str, int], label: str | None = None
    ) -> Metric:
        return self._fill(GaugeMetricFamily, name, documentation, values, label)

    def _counter(
        self, name: str, documentation: str, values: float | dict[str, float] | dict[str, int], label: str | None = None
    ) -> Metric:
        return self._fill(CounterMetricFamily, name, documentation, values, label)

    def _fill(
        self,
        family: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        documentation: str,
        values: float | dict[str, float] | dict[str, int],
        label: str | None,
    ) -> Metric:
        """Make a family with one sample, or one a value of ``label``."""
        names = [*self._labels, *([label] if label else [])]
        metric = family(name, documentation, labels=names)
        for key, value in values.items() if isinstance(values, dict) else [(None, values)]:
            metric.add_metric([*self._labels.values(), *([] if key is None else [key])], value)
        return metric


def by_position(values: Sequence[float]) -> dict[str, float]:
    """Values keyed by draft position, from 0."""
    return {str(position): value for position, value in enumerate(values)}


def mean_by_position(totals: Sequence[float], counts: Sequence[int]) -> dict[str, float]:
    """Means at the positions that have counts."""
    pairs = enumerate(zip(totals, counts, strict=True))
    return {str(position): total / count for position, (total, count) in pairs if count}
