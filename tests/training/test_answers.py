from __future__ import annotations

import json

import pytest

from adaverify.errors import ConfigError
from adaverify.sampling.params import SamplingParams
from adaverify.training.answers import AnswerWriter, read_answers
from adaverify.training.prompts import read_source
from support import plain_llm


def writer(target, path, temperatures=(0.0, 1.0), max_tokens=8):
    engine = plain_llm(target, max_num_seqs=8, max_model_len=96).engine
    return AnswerWriter(engine, path, max_tokens=max_tokens, temperatures=temperatures)


def eager_writer(target, path):
    """Some of its answers end by themselves, as a second turn needs."""
    return writer(target, path, (1.0, 3.0), max_tokens=32)


def test_answers_are_the_targets_own_at_every_temperature(target, prompts, tmp_path):
    answers = writer(target, tmp_path / "a.jsonl").write([read_source(str(prompts))], 10_000)
    by_id = {answer.id: answer for answer in answers}
    assert {f"questions/{i}/0@{t}" for i in range(40) for t in (0, 1)} <= set(by_id)
    llm = plain_llm(target)
    for i in (0, 7, 39):
        answer = by_id[f"questions/{i}/0@0"]
        alone = llm.generate(answer.prompt_token_ids, SamplingParams(temperature=0.0, max_tokens=8))[0]
        assert alone.outputs[0].token_ids == answer.output_token_ids
    assert any(
        by_id[f"questions/{i}/0@1"].output_token_ids != by_id[f"questions/{i}/0@0"].output_token_ids for i in range(40)
    )
    assert answers == read_answers(tmp_path / "a.jsonl")


def test_a_second_turn_is_asked_after_the_first_answer(target, prompts, tmp_path):
    writing = eager_writer(target, tmp_path / "a.jsonl")
    answers = {a.id: a for a in writing.write([read_source(str(prompts))], 10_000)}
    seconds = [name for name in answers if "/1@" in name]
    assert seconds
    for name in seconds:
        first = answers[name.replace("/1@", "/0@")]
        start = len(first.prompt_token_ids)
        assert answers[name].prompt_token_ids[:start] == first.prompt_token_ids
        assert answers[name].prompt_token_ids[start : start + 1] == first.output_token_ids[:1]


def test_a_broken_run_is_taken_up_where_it_ended(target, prompts, tmp_path):
    path = tmp_path / "a.jsonl"
    source = [read_source(str(prompts))]
    whole = {a.id: a for a in writer(target, tmp_path / "whole.jsonl").write(source, 10_000)}
    some = writer(target, path).write(source, 60)
    assert 60 <= sum(len(a.output_token_ids) for a in some) < sum(len(a.output_token_ids) for a in whole.values())
    path.write_bytes(path.read_bytes() + b'{"id": "questions/3')
    assert read_answers(path) == some
    again = writer(target, path)
    assert {a.id: a for a in again.write(source, 10_000)} == whole
    lines = path.read_text().split("\n")
    assert lines[-1] == ""
    assert len(lines) - 1 == len(whole)
    assert [json.loads(line)["id"] for line in lines[: len(some)]] == [a.id for a in some]


def test_the_target_writes_questions_itself_and_answers_them(target, tmp_path):
    answers = writer(target, tmp_path / "a.jsonl").write([], 300, self_weight=1)
    questions = [a for a in answers if a.source == "self" and "q/" not in a.id]
    answered = [a for a in answers if "q/" in a.id]
    assert len(questions) > 3
    assert len(answered) > 1
    assert all(a.prompt_token_ids == [1, 2] for a in questions)


def test_a_line_that_is_no_answer_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a", "prompt_token_ids": [1], "output_token_ids": [2]}\n{"x": 1}\n\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_answers(path)


def test_turns_that_a_broken_run_left_out_are_asked_later(target, prompts, tmp_path):
    source = [read_source(str(prompts))]
    whole = {a.id: a for a in eager_writer(target, tmp_path / "whole.jsonl").write(source, 10_000)}
    path = tmp_path / "a.jsonl"
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "/1@" not in line))
    assert len(read_answers(path)) < len(whole)
    assert {a.id: a for a in eager_writer(target, path).write(source, 10_000)} == whole


def test_two_files_of_one_name_are_refused(target, prompts, tmp_path):
    twin = tmp_path / prompts.name
    twin.write_text(prompts.read_text())
    with pytest.raises(ConfigError, match=r"questions.*rename"):
        writer(target, tmp_path / "a.jsonl").write([read_source(str(prompts)), read_source(str(twin))], 100)


def test_answers_longer_than_the_target_are_refused(target, prompts, tmp_path):
    engine = plain_llm(target, max_model_len=96).engine
    with pytest.raises(ConfigError, match="--max-tokens"):
        AnswerWriter(engine, tmp_path / "a.jsonl", 96, [0.0]).write([read_source(str(prompts))], 100)
