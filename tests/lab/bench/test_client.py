from __future__ import annotations

import json
from dataclasses import replace

import pytest

from adaverify.lab.bench.client import Answer, Reply, body, read
from adaverify.lab.bench.settings import COMPLETIONS, Asking
from adaverify.lab.bench.workload import Question

QUESTION = Question("maths", "How much?", 11)
ASKING = Asking(output_len=4)
END = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}


def chunk(content: str | None, reason: str | None = None, **delta: str) -> dict:
    return {"choices": [{"delta": {"content": content, **delta}, "finish_reason": reason}]}


def stream(*events: dict, done: bool = True) -> list[bytes]:
    lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    return lines + [b"data: [DONE]\n\n"] * done


def reply(pieces: list[bytes], status: int = 200, failure: str = "") -> Reply:
    """Pieces that came at seconds 11, 12, ..., of a request sent at 10."""
    return Reply(QUESTION, 10.0, tuple((11.0 + i, piece) for i, piece in enumerate(pieces)), status, failure)


def test_a_stream_is_read_into_deliveries_and_usage():
    answer = read(reply(stream(chunk("a"), chunk("bc"), chunk("d", "stop"), END)), ASKING)
    assert answer == Answer("maths", 10.0, 15.0, (11.0, 12.0, 13.0), 9, 4)


def test_a_role_or_an_end_alone_is_no_delivery():
    answer = read(reply(stream(chunk("", role="assistant"), chunk("a"), chunk(None, "stop"), END)), ASKING)
    assert answer.deliveries == (12.0,)
    assert answer.error == ""


def test_an_event_counts_when_it_is_complete():
    whole = b"".join(stream(chunk("a"), chunk("b", "stop"), END))
    first = len(stream(chunk("a"))[0])
    # the second event is cut in two, and all the rest comes in one piece
    answer = read(reply([whole[: first + 20], whole[first + 20 :]]), ASKING)
    assert answer.deliveries == (11.0, 12.0)
    assert read(reply([whole.replace(b"\n", b"\r\n")]), ASKING).deliveries == (11.0, 11.0)


def test_texts_of_completions_and_thoughts_are_deliveries():
    pieces = stream(
        {"choices": [{"text": "a", "finish_reason": None}]}, chunk(None, "stop", reasoning_content="b"), END
    )
    assert read(reply(pieces), ASKING).deliveries == (11.0, 12.0)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (reply([], 0, "ConnectError: refused"), "ConnectError: refused"),
        (reply([b'{"error": "queue\n full"}'], 503), 'HTTP 503: {"error": "queue full"}'),
        (reply(stream(chunk("a"), {"error": {"message": "not finite"}})), "not finite"),
        (reply(stream(chunk("a"), done=False)), "ended before the answer"),
        (reply(stream(chunk("a"), END)), "ended before the answer"),
        (reply(stream(chunk("a", "stop"))), "no usage"),
        (reply([b"data: {\n\n"]), "no JSON"),
    ],
)
def test_what_went_wrong_is_told(broken, told):
    assert told in read(broken, ASKING).error


def test_too_few_tokens_fail_only_where_their_number_was_fixed():
    short = stream(chunk("a", "stop"), END | {"usage": {"prompt_tokens": 9, "completion_tokens": 3}})
    assert read(reply(short), ASKING).error == ""
    assert "3 tokens of 4" in read(reply(short), Asking(output_len=4, ignore_eos=True)).error


def test_bodies_have_vllms_names():
    chat = json.loads(body(QUESTION, "m", Asking(output_len=4, ignore_eos=True, extra_body={"top_k": 5})))
    assert chat == {
        "model": "m",
        "messages": [{"role": "user", "content": "How much?"}],
        "max_completion_tokens": 4,
        "temperature": 1.0,
        "top_p": 0.95,
        "seed": 11,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_k": 5,
    }
    plain = json.loads(body(QUESTION, "m", Asking(endpoint=COMPLETIONS, output_len=4)))
    assert (plain["prompt"], plain["max_tokens"]) == ("How much?", 4)
    # servers that do not know it may refuse it
    assert "ignore_eos" not in plain


def test_lengths_differ_by_question_and_are_the_same_for_everyone_who_is_asked():
    asking = Asking(output_len=40, range_ratio=0.5, ignore_eos=True)
    questions = [Question("maths", "How much?", seed) for seed in range(200)]
    lengths = [json.loads(body(question, "ours", asking))["max_completion_tokens"] for question in questions]
    assert lengths == [json.loads(body(question, "theirs", asking))["max_completion_tokens"] for question in questions]
    assert (min(lengths), max(lengths)) == (20, 60)
    assert sum(lengths) / len(lengths) == pytest.approx(40, abs=3)
    enough = stream(chunk("a", "stop"), END | {"usage": {"prompt_tokens": 9, "completion_tokens": 21}})
    shortest = replace(reply(enough), question=questions[lengths.index(20)])
    longest = replace(reply(enough), question=questions[lengths.index(60)])
    assert read(shortest, asking).error == ""
    assert "21 tokens of 60" in read(longest, asking).error
