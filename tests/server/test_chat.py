from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.server.fake_engine import WORDS, FakeEngine
from tests.server.serving import events

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Hi"}


async def chat(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={"model": "fake", "messages": [USER], **body})


def prompt_text(engine: FakeEngine) -> str:
    return engine.tokenizer.decode(engine.seen[-1].prompt)


async def test_a_whole_answer(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = (await chat(client, max_tokens=9)).json()
    assert prompt_text(engine) == "<user>Hi\n<assistant>"
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": WORDS[:9]},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert answer["usage"]["prompt_tokens"] == 20
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


async def test_text_parts_are_joined(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await chat(client, messages=[{"role": "user", "content": parts}], max_tokens=3)
    assert prompt_text(engine) == "<user>one\ntwo\n<assistant>"


async def test_continuing_the_last_message(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    messages = [USER, {"role": "assistant", "content": "Well"}]
    await chat(client, messages=messages, max_tokens=3, continue_final_message=True)
    assert prompt_text(engine) == "<user>Hi\n<assistant>Well"


@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
    ],
)
async def test_token_limits(
    client: httpx.AsyncClient, engine: FakeEngine, sent: dict[str, int], limit: int | None
) -> None:
    await chat(client, **sent)
    assert engine.seen[0].params.max_tokens == limit


@pytest.mark.parametrize(("metadata", "dataset"), [(None, ""), ({}, ""), ({"dataset": "maths", "x": "y"}, "maths")])
async def test_metadata_names_the_dataset_of_a_trace(
    client: httpx.AsyncClient, engine: FakeEngine, metadata: dict[str, str] | None, dataset: str
) -> None:
    assert (await chat(client, metadata=metadata)).status_code == 200
    assert engine.seen[0].dataset == dataset


async def test_logprobs(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    answer = (await chat(client, max_tokens=3, logprobs=True, top_logprobs=2)).json()
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert first == {
        "token": "t",
        "logprob": -9999.0,
        "bytes": [116],
        "top_logprobs": [
            {"token": "u", "logprob": -1.0, "bytes": [117]},
            {"token": "v", "logprob": -2.0, "bytes": [118]},
        ],
    }
    await chat(client, max_tokens=3, logprobs=True)
    assert [seen.params.logprobs for seen in engine.seen] == [2, 0]


async def test_a_stream_tells_the_role_once_and_with_text(client: httpx.AsyncClient) -> None:
    chunks = events(await chat(client, max_tokens=7, stream=True, stream_options={"include_usage": True}))
    assert [chunk["object"] for chunk in chunks] == ["chat.completion.chunk"] * 4
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": "the"}, {"content": " qu"}, {"content": "i"}]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 27)


async def test_n_answers(client: httpx.AsyncClient) -> None:
    answer = (await chat(client, max_tokens=4, n=3)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 12


async def test_no_chat_template(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.tokenizer.chat_template = None
    response = await chat(client)
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([], "messages"),
        ([{"role": "robot", "content": "Hi"}], "no robots here"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
        ([{"role": "user", "content": [{"type": "refusal", "text": "No"}]}], "refusal"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"content": "Hi"}], "messages.0.role"),
    ],
)
async def test_messages_that_cannot_be_served(client: httpx.AsyncClient, messages: Any, told: str) -> None:
    response = await chat(client, messages=messages)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
    assert told in response.json()["error"]["message"]


async def test_a_template_of_the_clients_own_is_refused(client: httpx.AsyncClient) -> None:
    response = await chat(client, chat_template_kwargs={"chat_template": "{{ messages }}"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "chat_template")
    assert (await chat(client, chat_template_kwargs={"enable_thinking": False})).status_code == 200


async def test_top_logprobs_needs_logprobs(client: httpx.AsyncClient) -> None:
    response = await chat(client, top_logprobs=2)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "top_logprobs")
