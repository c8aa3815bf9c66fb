from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.server.fake_engine import WORDS, FakeEngine
from tests.server.serving import complete, events

pytestmark = pytest.mark.anyio

TEN = WORDS[:10]


async def test_a_whole_completion(client: httpx.AsyncClient) -> None:
    answer = (await complete(client)).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": 0, "text": TEN, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 10,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Hi", [[39, 72]]),
        (["Hi", "Ho"], [[39, 72], [39, 78]]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
async def test_every_form_of_a_prompt(
    client: httpx.AsyncClient, engine: FakeEngine, prompt: Any, expected: list[list[int]]
) -> None:
    answer = (await complete(client, prompt=prompt)).json()
    assert sorted(seen.prompt for seen in engine.seen) == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    assert answer["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * len(expected)


async def test_several_prompts_with_n(client: httpx.AsyncClient) -> None:
    answer = (await complete(client, prompt=["Hi", "Ho"], n=2)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert all(choice["text"] == TEN for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 40
    assert answer["usage"]["prompt_tokens"] == 4
    # The second completion of a prompt finds what the first has computed: that is not the cache's doing.
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 4


async def test_sampling_fields_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    sent = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.3,
        "logit_bias": {"7": -2.0},
        "allowed_token_ids": [1, 2],
        "bad_words": ["no"],
        "seed": 11,
        "stop": ["x"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "min_tokens": 4,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "max_tokens": 12,
        "logprobs": 3,
    }
    assert (await complete(client, **sent)).status_code == 200
    params = engine.seen[0].params
    for name, value in {**sent, "logit_bias": {7: -2.0}}.items():
        assert getattr(params, name) == value, name


async def test_null_means_the_default(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await complete(client, temperature=None, stop=None, n=None, logprobs=None, stream=None, max_tokens=None)
    params = engine.seen[0].params
    assert (params.temperature, params.stop, params.n, params.logprobs, params.max_tokens) == (1.0, [], 1, None, None)


async def test_sixteen_tokens_unless_told(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    await client.post("/v1/completions", json={"prompt": "Hi"})
    assert engine.seen[0].params.max_tokens == 16


async def test_logprobs_are_parallel_lists(client: httpx.AsyncClient) -> None:
    choice = (await complete(client, logprobs=2, max_tokens=3)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["t", "h", "e"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert logprobs["token_logprobs"] == [-9999.0] * 3
    assert logprobs["top_logprobs"][0] == {"u": -1.0, "v": -2.0, "t": -9999.0}


async def test_streamed_offsets_go_on(client: httpx.AsyncClient) -> None:
    chunks = events(await complete(client, logprobs=0, stream=True))
    offsets = [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == list(range(10))


async def test_a_stream(client: httpx.AsyncClient) -> None:
    response = await complete(client, stream=True)
    chunks = events(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [TEN[:3], TEN[3:6], TEN[6:9], TEN[9:]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)


async def test_a_stream_of_several_choices(client: httpx.AsyncClient) -> None:
    texts = dict.fromkeys(range(4), "")
    for chunk in events(await complete(client, stream=True, prompt=["Hi", "Ho"], n=2)):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == dict.fromkeys(range(4), TEN)


async def test_include_usage_adds_a_last_chunk(client: httpx.AsyncClient) -> None:
    chunks = events(await complete(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 10
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_continuous_usage_grows(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(await complete(client, stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [3, 6, 9, 10, 10]
