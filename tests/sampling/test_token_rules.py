from __future__ import annotations

import pytest
import torch

from adaverify.errors import InvalidRequestError
from adaverify.sampling import SamplingParams, validate_token_ids
from adaverify.sampling.token_rules import apply_token_rules, has_token_rules

VOCAB = 12
PROMPT = [1, 2, 2]
OUTPUT = [3, 4, 3]
DRAFTS = [5, 4, 5, 1]
EOS = frozenset({11})
INF = float("inf")

RULES = {
    "allowed": {"allowed_token_ids": [1, 4, 5, 9]},
    "bad words": {"bad_words_token_ids": [[7], [3, 5], [5, 4], [4, 5, 1], [2, 3], [3, 8]]},
    "min_tokens": {"min_tokens": 5, "stop_token_ids": [2, 6]},
    "bias": {"logit_bias": {0: 5.0, 5: -3.0}},
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": -0.4},
    "repetition": {"repetition_penalty": 1.3},
    "all": {
        "allowed_token_ids": [1, 3, 4, 5, 8, 11],
        "bad_words_token_ids": [[3, 5], [5, 4]],
        "min_tokens": 6,
        "logit_bias": {4: 2.0, 11: 9.0},
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 0.8,
    },
}


def logits(rows=5):
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0)) * 3


def applied(rows, params, prompt=PROMPT, output=OUTPUT, drafts=()):
    rows = rows.clone()
    apply_token_rules(rows, params, prompt, output, drafts, EOS)
    return rows


@pytest.mark.parametrize("rule", RULES)
def test_rows_with_drafts_equal_decoding_one_by_one(rule):
    params = SamplingParams(**RULES[rule])
    raw = logits()
    together = applied(raw, params, drafts=DRAFTS)
    for j in range(1 + len(DRAFTS)):
        alone = applied(raw[j : j + 1], params, output=OUTPUT + DRAFTS[:j])
        assert torch.equal(together[j : j + 1], alone), j
    assert not torch.equal(together, raw)


def test_allowed_ids_leave_their_logits_and_forbid_the_rest():
    raw = logits(1)
    row = applied(raw, SamplingParams(allowed_token_ids=[4, 9]))
    assert torch.equal(row[:, [4, 9]], raw[:, [4, 9]])
    assert row.isinf().sum() == VOCAB - 2


def test_bad_words_forbid_the_last_token_where_the_others_were_just_generated():
    raw = logits(1)
    words = [[7], [4, 3, 0], [3, 8], [4, 9], [2, 3, 4, 3, 10]]  # the last one would need the prompt
    row = applied(raw, SamplingParams(bad_words_token_ids=words))
    assert row[0].isinf().nonzero().flatten().tolist() == [0, 7, 8]


def test_bad_words_see_drafts_only_up_to_their_row():
    rows = applied(logits(3), SamplingParams(bad_words_token_ids=[[6, 7]]), drafts=[6, 0])
    assert rows.isinf().nonzero().tolist() == [[1, 7]]


def test_min_tokens_forbids_stopping_until_enough_tokens():
    params = SamplingParams(min_tokens=5, stop_token_ids=[6, VOCAB + 3])
    rows = applied(logits(4), params, drafts=[0, 0, 0])
    assert rows.isinf().nonzero().tolist() == [[0, 6], [0, 11], [1, 6], [1, 11]]


def test_presence_and_frequency_count_the_output_only():
    raw = torch.zeros(2, VOCAB)
    rows = applied(raw, SamplingParams(presence_penalty=1.0, frequency_penalty=0.5), drafts=[3])
    expected = torch.zeros(2, VOCAB)
    expected[0, 3], expected[0, 4] = -2.0, -1.5
    expected[1, 3], expected[1, 4] = -2.5, -1.5
    assert torch.equal(rows, expected)


def test_repetition_covers_prompt_and_output_once():
    raw = torch.ones(1, VOCAB)
    raw[0, 2] = -1.0
    row = applied(raw, SamplingParams(repetition_penalty=2.0))
    expected = torch.ones(1, VOCAB)
    expected[0, [1, 3, 4]] = 0.5
    expected[0, 2] = -2.0
    assert torch.equal(row, expected)


def test_penalties_come_after_the_bias_and_repetition_before_the_others():
    params = SamplingParams(logit_bias={3: 3.0}, repetition_penalty=2.0, presence_penalty=1.0)
    row = applied(torch.ones(1, VOCAB), params)
    assert row[0, 3].item() == (1 + 3) / 2 - 1


def test_a_bias_cannot_bring_back_a_forbidden_token():
    row = applied(logits(1), SamplingParams(logit_bias={11: 50.0}, min_tokens=9))
    assert row[0, 11].item() == -INF


def test_an_empty_history_is_not_penalised():
    raw = logits(1)
    row = applied(raw, SamplingParams(presence_penalty=1.0, repetition_penalty=2.0), prompt=[], output=[])
    assert torch.equal(row, raw)


@pytest.mark.parametrize("rule", RULES)
def test_only_requests_with_rules_pay(rule):
    assert has_token_rules(SamplingParams(**RULES[rule]), len(OUTPUT))
    assert not has_token_rules(SamplingParams(temperature=0.3, top_p=0.5, stop_token_ids=[3]), 0)
    assert not has_token_rules(SamplingParams(min_tokens=3), len(OUTPUT))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {VOCAB: 1.0}),
        ("allowed_token_ids", [0, -1]),
        ("bad_words_token_ids", [[1], [2, VOCAB + 7]]),
    ],
)
def test_token_ids_outside_the_vocabulary_are_refused(field, value):
    with pytest.raises(InvalidRequestError, match=f"{field}.*0 to {VOCAB - 1}") as caught:
        validate_token_ids(SamplingParams(**{field: value}), VOCAB)
    assert caught.value.param == field
    validate_token_ids(SamplingParams(logit_bias={0: 1.0}, allowed_token_ids=[VOCAB - 1]), VOCAB)
