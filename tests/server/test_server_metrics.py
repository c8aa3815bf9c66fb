from __future__ import annotations

import math

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.fake_engine import FakeEngine
from tests.server.serving import asgi_client, complete

from adaverify.config import EngineConfig, SpeculativeConfig
from adaverify.engine.stats import EngineStats

pytestmark = pytest.mark.anyio

STATS = EngineStats(
    num_requests_running=3,
    num_requests_waiting=2,
    kv_cache_usage=0.25,
    prefix_cache_queries=100,
    prefix_cache_hits=40,
    num_preemptions=1,
    prompt_tokens=500,
    generation_tokens=600,
    finished={"stop": 4, "length": 5},
    num_verify_rounds=30,
    num_draft_rounds=50,
    drafted=[50, 50],
    admitted=[30, 10],
    accepted=[20, 5],
    observed=[25, 0],
    predicted_sum=[15.0, 0.0],
    draft_budget=7,
    num_draftable_steps=40,
    num_undrafted_steps=15,
    draft_depth_sum=50,
    estimator_slope=0.5,
    estimator_intercepts=[-0.1, -0.2],
    seconds={"target": 9.5, "policy": 0.5},
    step_ms=130.0,
    predicted_step_ms={"live": 120.0, "startup": 90.0},
    step_error_percent={"live": 7.5, "startup": 31.0},
)


def speculating() -> FakeEngine:
    speculative = SpeculativeConfig(method="draft_model", model="d", num_speculative_tokens=2)
    return FakeEngine(config=EngineConfig(model="m", speculative_config=speculative), counters=STATS)


async def scrape(client: httpx.AsyncClient) -> dict[tuple[str, str], float]:
    """Sample values by name and by the label that is not the model's."""
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    values = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("model_name"), labels.pop("engine")) == ("fake", "0")
            values[sample.name, ",".join(labels.values())] = sample.value
    return values


@pytest.mark.parametrize(
    ("name", "label", "value"),
    [
        ("vllm:num_requests_running", "", 3),
        ("vllm:num_requests_waiting", "", 2),
        ("vllm:kv_cache_usage_perc", "", 0.25),
        ("vllm:prefix_cache_queries_total", "", 100),
        ("vllm:prefix_cache_hits_total", "", 40),
        ("vllm:num_preemptions_total", "", 1),
        ("vllm:prompt_tokens_total", "", 500),
        ("vllm:generation_tokens_total", "", 600),
        ("vllm:request_success_total", "length", 5),
        ("vllm:request_success_total", "error", 0),
        ("vllm:spec_decode_num_drafts_total", "", 50),
        ("vllm:spec_decode_num_draft_tokens_total", "", 40),
        ("vllm:spec_decode_num_accepted_tokens_total", "", 25),
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "1", 5),
        ("adaverify:draft_tokens_drafted_total", "1", 50),
        ("adaverify:draft_tokens_admitted_total", "1", 10),
        ("adaverify:draft_tokens_accepted_total", "0", 20),
        ("adaverify:draft_budget", "", 7),
        ("adaverify:draftable_steps_total", "", 40),
        ("adaverify:undrafted_steps_total", "", 15),
        ("adaverify:draft_depth_total", "", 50),
        ("adaverify:estimator_slope", "", 0.5),
        ("adaverify:estimator_intercept", "1", -0.2),
        ("adaverify:predicted_acceptance", "0", 0.6),
        ("adaverify:observed_acceptance", "0", 0.8),
        ("adaverify:step_seconds_total", "target", 9.5),
        ("adaverify:step_ms", "", 130),
        ("adaverify:predicted_step_ms", "live", 120),
        ("adaverify:predicted_step_ms", "startup", 90),
        ("adaverify:step_error_percent", "live", 7.5),
        ("adaverify:step_error_percent", "startup", 31),
    ],
)
async def test_every_counter_is_told(name: str, label: str, value: float, anyio_backend: str) -> None:
    async with asgi_client(speculating()) as client:
        assert (await scrape(client))[name, label] == pytest.approx(value)


async def test_no_mean_where_nothing_was_observed(anyio_backend: str) -> None:
    async with asgi_client(speculating()) as client:
        values = await scrape(client)
    assert ("adaverify:predicted_acceptance", "1") not in values
    assert all(math.isfinite(value) for value in values.values())


async def test_without_measured_costs_nothing_is_said_of_steps(anyio_backend: str) -> None:
    engine = speculating()
    engine.counters = EngineStats.start(2)
    async with asgi_client(engine) as client:
        names = {name for name, _ in await scrape(client)}
    assert "adaverify:draft_budget" in names
    assert not any("step_ms" in name or "step_error" in name for name in names)


async def test_no_speculation_no_speculation_metrics(client: httpx.AsyncClient) -> None:
    names = {name for name, _ in await scrape(client)}
    assert "vllm:num_requests_running" in names
    assert not any("spec_decode" in name or "draft" in name or "estimator" in name for name in names)


async def test_latencies_are_counted_a_completion(client: httpx.AsyncClient) -> None:
    assert (await complete(client, n=2)).status_code == 200
    assert (await complete(client, max_tokens=1)).status_code == 200
    values = await scrape(client)
    assert values["vllm:time_to_first_token_seconds_count", ""] == 3
    assert values["vllm:e2e_request_latency_seconds_count", ""] == 3
    # Ten tokens come in four steps, so with three pauses; a single token has none.
    assert values["vllm:inter_token_latency_seconds_count", ""] == 6
    assert values["vllm:request_time_per_output_token_seconds_count", ""] == 2


async def test_servers_do_not_share_metrics(anyio_backend: str) -> None:
    async with asgi_client(FakeEngine()) as one, asgi_client(FakeEngine()) as other:
        await complete(one)
        assert (await scrape(other))["vllm:time_to_first_token_seconds_count", ""] == 0
