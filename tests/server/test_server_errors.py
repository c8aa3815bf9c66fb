from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.server.fake_engine import FakeEngine
from tests.server.serving import asgi_client, complete, events

from adaverify.errors import EngineDeadError, QueueFullError, ShuttingDownError

pytestmark = pytest.mark.anyio


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, which must have OpenAI's shape."""
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_k", -2),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("repetition_penalty", 0),
        ("n", 0),
        ("max_tokens", 0),
        ("logprobs", 21),
        ("stop", [""]),
        ("min_tokens", 11),
        ("logit_bias", {"seven": 1}),
        ("allowed_token_ids", []),
        ("seed", 1.5),
        ("prompt", ""),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", {"a": 1}),
        ("prompt", ["a", 1]),
        ("prompt", [True]),
        ("prompt", "x" * 300),
        ("stream_options", {"include_usage": True}),
    ],
)
async def test_bad_values_are_named(client: httpx.AsyncClient, field: str, value: Any) -> None:
    error = error_of(await complete(client, **{field: value}), 400)
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("field", ["prompt", "bad_words", "messages"])
async def test_half_a_surrogate_pair_is_refused(client: httpx.AsyncClient, field: str) -> None:
    half = "\\ud800"
    body = {
        "prompt": f'{{"prompt": "{half}"}}',
        "bad_words": f'{{"prompt": "Hi", "bad_words": ["{half}"]}}',
        "messages": f'{{"messages": [{{"role": "user", "content": "{half}"}}]}}',
    }[field]
    path = "/v1/chat/completions" if field == "messages" else "/v1/completions"
    headers = {"Content-Type": "application/json"}
    assert error_of(await client.post(path, content=body, headers=headers), 400)["param"] == field


async def test_a_bad_prompt_gets_one_message(client: httpx.AsyncClient) -> None:
    error = error_of(await complete(client, prompt=["a", 1]), 400)
    assert error["message"] == (
        "prompt: must be a string, a list of strings, a list of token ids or a list of lists of token ids"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", True),
        ("best_of", 2),
        ("suffix", "end"),
        ("prompt_logprobs", 0),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("functions", [{}]),
        ("structured_outputs", {"json": {}}),
        ("guided_json", {"type": "object"}),
        ("guided_json", {}),
        ("guided_regex", "a+"),
        ("use_beam_search", True),
        ("length_penalty", 2),
    ],
)
async def test_what_we_cannot_give_is_refused(client: httpx.AsyncClient, field: str, value: Any) -> None:
    error = error_of(await complete(client, **{field: value}), 400)
    assert error["param"] == field
    assert field in error["message"]


async def test_unsupported_fields_at_rest_and_unknown_fields_are_ignored(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    rest = {
        "echo": False,
        "best_of": 1,
        "suffix": None,
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "none",
        "length_penalty": 1.0,
        "user": "someone",
        "surely_unknown": {"a": 1},
    }
    assert (await complete(client, **rest)).status_code == 200
    assert len(engine.seen) == 1


async def test_more_completions_than_the_queue_holds(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    error = error_of(await complete(client, n=9), 400)
    assert error["param"] == "n"
    assert engine.seen == []


async def test_json_that_is_none(client: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    response = await client.post("/v1/completions", content=b'{"prompt": ', headers=headers)
    assert "not valid JSON" in error_of(response, 400)["message"]


async def test_unknown_model_names_the_served_ones(client: httpx.AsyncClient) -> None:
    error = error_of(await complete(client, model="gpt-9"), 404)
    assert error["code"] == "model_not_found"
    assert "'gpt-9'" in error["message"]
    assert "'fake', 'alias'" in error["message"]


async def test_a_model_can_be_looked_up_by_its_name(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models/alias")).json()["id"] == "alias"
    assert "'gpt-9'" in error_of(await client.get("/v1/models/gpt-9"), 404)["message"]


async def test_unknown_paths_and_methods(client: httpx.AsyncClient) -> None:
    error_of(await client.get("/v1/nothing"), 404)
    error_of(await client.get("/v1/completions"), 405)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic key"}])
async def test_api_key(engine: FakeEngine, headers: dict[str, str]) -> None:
    async with asgi_client(engine, api_key="key") as client:
        for path in ("/v1/models", "/v1/chat/completions"):
            method = "GET" if path.endswith("models") else "POST"
            response = await client.request(
                method, path, headers=headers, json={"messages": [{"role": "user", "content": "Hi"}]}
            )
            assert error_of(response, 401)["code"] == "invalid_api_key"
        assert [(await client.get(path)).status_code for path in ("/health", "/version", "/metrics")] == [200] * 3
        right = {"Authorization": "Bearer key"}
        assert (await client.get("/v1/models", headers=right)).status_code == 200
    assert engine.seen == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "status", "retry_after"),
    [
        (QueueFullError("8 requests wait"), 503, "1"),
        (ShuttingDownError("going down"), 503, "10"),
        (EngineDeadError("the loop died"), 500, None),
    ],
)
async def test_what_the_engine_refuses(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    refusal: Exception,
    status: int,
    retry_after: str | None,
    stream: bool,
) -> None:
    engine.refuse = refusal
    response = await complete(client, stream=stream)
    assert error_of(response, status)["message"] == str(refusal)
    assert response.headers.get("retry-after") == retry_after


async def test_one_refused_prompt_aborts_its_siblings(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await complete(client, prompt=["Hi", "x" * 300])
    assert error_of(response, 400)["param"] == "prompt"
    assert engine.running == set()


async def test_a_failed_completion(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at = 6
    error = error_of(await complete(client, n=2), 500)
    assert error["message"] == "the target's logits are not finite"
    assert engine.running == set()


async def test_a_stream_that_fails_at_once(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at = 1
    error_of(await complete(client, stream=True), 500)


async def test_a_stream_that_fails_midway(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_at = 6
    response = await complete(client, stream=True)
    first, last = events(response)
    assert response.status_code == 200
    assert first["choices"][0]["text"] == "the"
    assert last["error"]["message"] == "the target's logits are not finite"
    assert last["error"]["type"] == "server_error"


async def test_a_bug_keeps_its_message_to_the_log(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.refuse = RuntimeError("secret")
    error = error_of(await complete(client), 500)
    assert "secret" not in error["message"]


async def test_health_follows_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await client.get("/health")).status_code == 200
    engine.is_healthy = False
    assert (await client.get("/health")).status_code == 503
    error_of(await complete(client), 500)
