"""The ``openai`` client against the server on a real socket."""

from __future__ import annotations

import time
from importlib.metadata import version

import httpx
import openai
import pytest
from tests.server.fake_engine import WORDS, FakeEngine
from tests.server.serving import live

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def openai_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_models(openai_client: openai.OpenAI) -> None:
    (model,) = openai_client.models.list()
    assert (model.id, model.root, model.max_model_len) == ("fake", "fake/model", 256)


def test_version(url: str) -> None:
    assert httpx.get(f"{url}/version").json() == {"version": version("adaverify")}


def test_chat(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = openai_client.chat.completions.create(
        model="fake", messages=HI, max_completion_tokens=9, extra_body={"top_k": 4}, logprobs=True, top_logprobs=1
    )
    assert answer.choices[0].message.content == WORDS[:9]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].token == "u"
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert engine.seen[0].params.top_k == 4
    assert engine.started


def test_chat_stream(openai_client: openai.OpenAI) -> None:
    stream = openai_client.chat.completions.create(
        model="fake", messages=HI, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == WORDS[:9]
    assert chunks[-1].usage.completion_tokens == 9


def test_accumulating_stream_helper(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.ending = "stop"
    with openai_client.chat.completions.stream(model="fake", messages=HI, max_tokens=9) as stream:
        answer = stream.get_final_completion()
    assert (answer.choices[0].message.role, answer.choices[0].message.content) == ("assistant", WORDS[:9])


def test_completion_stream(openai_client: openai.OpenAI) -> None:
    stream = openai_client.completions.create(model="fake", prompt="Hi", max_tokens=9, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == WORDS[:9]


def test_errors_become_the_clients_exceptions(openai_client: openai.OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        openai_client.completions.create(model="fake", prompt="Hi", temperature=-1)
    with pytest.raises(openai.NotFoundError, match="'gpt-9'"):
        openai_client.completions.create(model="gpt-9", prompt="Hi")
    engine.fail_at = 6
    with pytest.raises(openai.APIError, match="not finite"):
        list(openai_client.completions.create(model="fake", prompt="Hi", stream=True))


def test_wrong_key() -> None:
    with live(FakeEngine(), api_key="right") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        assert client.with_options(api_key="right").models.list().data[0].id == "fake"


def wait_until_aborted(engine: FakeEngine) -> None:
    for _ in range(500):
        if engine.aborted:
            return
        time.sleep(0.01)
    raise AssertionError(f"still running: {engine.running}")


def test_leaving_a_stream_aborts_the_request(url: str, engine: FakeEngine) -> None:
    engine.tokens_per_step, engine.pace = 1, 0.01
    body = {"prompt": ["Hi", "Ho"], "max_tokens": 200, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_until_aborted(engine)
    assert engine.running == set()


def test_leaving_while_waiting_aborts_the_request(url: str, engine: FakeEngine) -> None:
    engine.tokens_per_step, engine.pace = 1, 0.05
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json={"prompt": "Hi", "max_tokens": 200}, timeout=0.5)
    wait_until_aborted(engine)
    assert engine.running == set()


def test_leaving_before_the_first_token_aborts_the_request(url: str, engine: FakeEngine) -> None:
    engine.pace = 3.0
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json={"prompt": "Hi", "stream": True}, timeout=0.3)
    wait_until_aborted(engine)
