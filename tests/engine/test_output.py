from __future__ import annotations

import random

import pytest
from tests.support import byte_tokenizer

from adaverify.engine.output import CompletionStream, Detokenizer
from adaverify.engine.request import Request
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.sampler import SampleResult

TOKENIZER = byte_tokenizer()
EOS = TOKENIZER.eos_token_id
PROMPT = "Say: "
TEXTS = ["plain", "naïve café", "日本語のテキスト", "👩‍👩‍👧 and 🏳️‍🌈!", "a\u0301\u200db", "  two  spaces \n\n", "é"]


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def stream(max_new: int = 10_000, eos=(EOS,), prompt: str = PROMPT, **params) -> CompletionStream:
    token_ids = ids(prompt)
    params = SamplingParams(max_tokens=max_new, **params)
    request = Request("r", 0, params, token_ids, len(token_ids), 0, frozenset(eos), len(token_ids) + max_new)
    return CompletionStream(request, TOKENIZER)


def play(one: CompletionStream, token_ids: list[int], sizes: list[int] | None = None):
    """Feed rounds of the given sizes (1 each by default); returns the deltas."""
    deltas, rest, sizes = [], list(token_ids), list(sizes or [])
    while rest and one.request.finish_reason is None:
        size = sizes.pop(0) if sizes else 1
        counted = one.feed(SampleResult(rest[:size], size - 1))
        one.request.append(counted, 0)
        deltas.append(one.delta())
        rest = rest[size:]
    return deltas


def text(deltas) -> str:
    return "".join(delta.text for delta in deltas)


def tokens(deltas) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def test_the_tokenizer_splits_characters():
    assert len(ids("é")) == 2
    assert len(ids("👩")) == 4
    assert TOKENIZER.decode(ids("日")[:2]) == "\ufffd"


@pytest.mark.parametrize("whole", TEXTS)
def test_detokenizer_never_takes_text_back(whole):
    detokenizer = Detokenizer(TOKENIZER, ids(PROMPT), skip_special_tokens=True)
    parts = [detokenizer.push([token]) for token in ids(whole)]
    assert "".join(parts) + detokenizer.push([], final=True) == whole
    assert "\ufffd" not in "".join(parts)


def test_an_unfinished_character_is_given_up_only_at_the_end():
    detokenizer = Detokenizer(TOKENIZER, ids(PROMPT), skip_special_tokens=True)
    assert detokenizer.push(ids("a👩")[:-1]) == ""
    assert detokenizer.push([], final=True) == "a\ufffd"


@pytest.mark.parametrize("whole", TEXTS)
@pytest.mark.parametrize("stop", [[], ["never there", "日本x"]])
def test_deltas_add_up_to_the_whole_however_rounds_are_cut(whole, stop):
    dice = random.Random(0)
    for _ in range(5):
        sizes = [dice.randint(1, 6) for _ in whole.encode()]
        deltas = play(stream(stop=stop), [*ids(whole), EOS, 1, 2, 3], sizes)
        assert text(deltas) == whole
        assert tokens(deltas) == [*ids(whole), EOS]
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish_reason == "stop"
        assert deltas[-1].stop_reason is None


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("sizes", [[1], [3, 1, 4], [50]])
@pytest.mark.parametrize("stop", ["STOP", "日本", "é", " STOP"])
def test_stop_strings_across_token_borders(include, sizes, stop):
    before, after = "one ST" + ("日" if stop == "日本" else "x"), " and more"
    deltas = play(stream(stop=["zzz", stop], include_stop_str_in_output=include), ids(before + stop + after), sizes)
    assert text(deltas) == before + (stop if include else "")
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].stop_reason == stop
    assert tokens(deltas) == ids(before + stop), "tokens after the stop string do not count"


def test_what_may_become_a_stop_string_is_held_back_and_then_released():
    one = stream(stop=["abcd"])
    shown = [delta.text for delta in play(one, ids("xabcx"))]
    assert shown == ["x", "", "", "", "abcx"]
    assert [delta.text for delta in play(one, ids("ababcd"))] == ["", "", "ab", "", "", ""]
    assert one.request.stop_reason == "abcd"


@pytest.mark.parametrize("ending", ["eos", "length", "stop token"])
def test_held_back_text_is_released_at_the_end(ending):
    max_new = 4 if ending == "length" else 100
    last = {"eos": [EOS], "length": [], "stop token": ids("#")}[ending]
    deltas = play(stream(max_new, stop=["abcdef"], stop_token_ids=ids("#")), ids("xabc") + last)
    assert text(deltas) == "xabc"
    assert deltas[-1].finish_reason == ("length" if ending == "length" else "stop")


def test_the_first_of_several_stop_strings_ends_the_text():
    deltas = play(stream(stop=["cd", "bc"]), ids("abcd"), [4])
    assert text(deltas) == "a"
    assert deltas[-1].stop_reason == "bc"


@pytest.mark.parametrize("include", [False, True])
def test_stop_token_ids(include):
    deltas = play(stream(stop_token_ids=ids("!"), include_stop_str_in_output=include), ids("ab!cd"), [5])
    assert text(deltas) == ("ab!" if include else "ab")
    assert deltas[-1].stop_reason == ids("!")[0]
    assert tokens(deltas) == ids("ab!")


def test_ignore_eos_goes_on_but_stop_tokens_still_stop():
    deltas = play(stream(6, ignore_eos=True), [*ids("ab"), EOS, *ids("cdefgh")])
    assert text(deltas) == "abcde"
    assert deltas[-1].finish_reason == "length"
    assert play(stream(6, ignore_eos=True, stop_token_ids=[EOS]), [*ids("ab"), EOS])[-1].finish_reason == "stop"


def test_special_tokens_are_shown_on_request():
    shown = play(stream(6, ignore_eos=True, skip_special_tokens=False), [*ids("ab"), EOS, *ids("cde")])
    assert text(shown) == "ab<eos>cde"


def test_stop_strings_wait_for_min_tokens():
    deltas = play(stream(min_tokens=6, stop=["b"]), ids("abcabcabc"))
    assert text(deltas) == "abcabca"
    assert len(tokens(deltas)) == 8


@pytest.mark.parametrize("sizes", [[1], [3, 3], [20]])
def test_length_ends_exactly_at_max_tokens(sizes):
    deltas = play(stream(5), ids("abcdefgh"), sizes)
    assert tokens(deltas) == ids("abcde")
    assert text(deltas) == "abcde"
    assert [delta.finish_reason for delta in deltas].count("length") == 1


def test_a_character_cut_by_length_is_shown_as_replacement():
    assert text(play(stream(3), ids("aé👩"))) == "aé"
    assert text(play(stream(4), ids("aé👩"))) == "aé\ufffd"


def test_failure_and_logprobs_reach_the_delta():
    one = stream(logprobs=0)
    one.feed(SampleResult(ids("ab"), 1, logprobs=["first", "second"]))
    delta = one.delta()
    assert delta.logprobs == ["first", "second"]
    one.fail("broken")
    delta = one.delta()
    assert (delta.finish_reason, delta.error, delta.token_ids, delta.logprobs) == ("error", "broken", [], [])
