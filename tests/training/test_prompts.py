from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest

from adaverify.errors import ConfigError
from adaverify.training.prompts import PromptSource, mix, read_source


def write(tmp_path, *rows):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_reads_turns_messages_and_prompts_and_the_weight(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "x"}]
    path = write(tmp_path, {"turns": ["a", "b"]}, {"messages": chat}, {"prompt": "d\u2028e"})
    source = read_source(f"{path}:3")
    assert source.conversations == [["a", "b"], ["c"], ["d\u2028e"]]
    assert (source.name, source.weight) == ("p", 3)
    assert read_source(str(path)).weight == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "holds no prompt"),
        (("not json",), "line 1"),
        (({"turns": ["a"]}, {"question": "b"}), "line 2"),
        (({"turns": []},), "no user turn"),
        (({"turns": [3]},), "not text"),
    ],
)
def test_refuses_what_is_no_prompt_file(tmp_path, rows, message):
    with pytest.raises(ConfigError, match=message):
        read_source(str(write(tmp_path, *rows)))


def test_refuses_a_missing_file():
    with pytest.raises(ConfigError, match="no such file"):
        read_source("nowhere.jsonl:2")


def test_every_beginning_of_a_mixture_holds_the_weights_until_a_source_runs_out():
    sources = [PromptSource("a", [["x"]] * 300, 3), PromptSource("b", [["y"]] * 40, 1)]
    names = [prompt_id.split("/")[0] for prompt_id, _ in mix(sources)]
    assert len(names) == 340
    for end in (4, 8, 60, 160):
        assert Counter(islice(names, end))["b"] == end // 4
    assert len({prompt_id for prompt_id, _ in mix(sources)}) == 340


def test_reads_categories_where_lines_name_them(tmp_path):
    path = write(tmp_path, {"prompt": "a", "category": "rag"}, {"prompt": "b"})
    assert read_source(str(path)).categories == ["rag", ""]
