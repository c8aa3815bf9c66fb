from __future__ import annotations

import pytest

from adaverify.errors import InvalidRequestError
from adaverify.sampling import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**63),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("min_tokens", -1),
        ("min_tokens", 17),  # more than max_tokens
        ("max_tokens", 0),
        ("logprobs", 21),
        ("stop", [""]),
        ("allowed_token_ids", []),
        ("bad_words", [""]),
        ("bad_words", ["\ud800"]),
        ("bad_words_token_ids", [[]]),
        ("seed", 2**63),
        ("logit_bias", {1: float("inf")}),
    ],
)
def test_refuses_values_out_of_range_and_names_the_field(field, value):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_defaults_and_limits_are_accepted():
    assert not SamplingParams().is_greedy
    assert SamplingParams(temperature=0).is_greedy
    SamplingParams(top_k=2**63 - 1)
    SamplingParams(top_k=-1, top_p=1.0, min_p=1.0, seed=-(2**63), logprobs=0, max_tokens=None, min_tokens=99)


def test_a_single_stop_string_becomes_a_list():
    assert SamplingParams(stop="end").stop == ["end"]


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": [1]},
        {"bad_words_token_ids": [[1]]},
        {"min_tokens": 1},
    ],
)
def test_knows_what_changes_the_target_only(fields):
    assert SamplingParams(**fields).has_target_only_transforms
    assert not SamplingParams(temperature=0.5, top_p=0.9, top_k=5, min_p=0.1).has_target_only_transforms
