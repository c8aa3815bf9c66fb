"""Sampling parameters mean the same with and without speculation, and whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch
from tests.support import Pair, plain_llm, token_ids
from transformers import AutoModelForCausalLM

from adaverify import SamplingParams
from adaverify.errors import InvalidRequestError, QueueFullError

VOCAB = 48
RULES = {
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5},
    "repetition": {"repetition_penalty": 1.8},
    "all penalties": {"presence_penalty": 0.5, "frequency_penalty": -1.0, "repetition_penalty": 1.3},
    "min_p": {"min_p": 0.3},
    "bias": {"logit_bias": {3: 6.0, 7: 5.0, 11: -100.0}},
    "bad words": {"bad_words": ["w39", "w4 w5", "w17 w22"]},
    "bad word ids": {"bad_words_token_ids": [[19], [34], [39]]},
    "stop": {"stop": ["w39", "w22 w4", "w19"]},
    "stop shown": {"stop": ["w2"], "include_stop_str_in_output": True},
    "stop ids": {"stop_token_ids": [39, 4, 22]},
    "allowed ids": {"allowed_token_ids": list(range(0, VOCAB, 3))},
    "min_tokens": {"min_tokens": 20, "stop_token_ids": [39, 4, 22]},
    "ignore_eos": {"ignore_eos": True},
    "seed": {"seed": 5},
}
# these cannot change a greedy text
INERT = {"min_p", "seed"}


@pytest.fixture(scope="module")
def plain(pair: Pair):
    return plain_llm(pair.target)


@pytest.fixture(scope="module")
def speculating(pair: Pair):
    return pair.llm()


def texts(outputs):
    return [(one.text, one.token_ids, one.finish_reason, one.stop_reason) for out in outputs for one in out.outputs]


@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_the_same_with_and_without_speculation(plain, speculating, prompts, rule):
    params = SamplingParams(temperature=0.0, max_tokens=20, **RULES[rule])
    before = speculating.stats()
    expected, actual = plain.generate(prompts, params), speculating.generate(prompts, params)
    assert texts(actual) == texts(expected)
    after = speculating.stats()
    assert sum(after.admitted) > sum(before.admitted)
    assert sum(after.drafted) - sum(before.drafted) > sum(after.admitted) - sum(before.admitted), "nothing trimmed"
    unruled = plain.generate(prompts, SamplingParams(temperature=0.0, max_tokens=20))
    assert (texts(unruled) == texts(expected)) == (rule in INERT)


def test_rules_of_one_request_leave_the_others_alone(speculating, prompts, reference):
    rules = list(RULES.values())
    params = [
        SamplingParams(temperature=0.0, max_tokens=20, **(rules[i % len(rules)] if i % 2 else {}))
        for i in range(len(prompts))
    ]
    outputs = token_ids(speculating.generate(prompts, params))
    assert outputs[::2] == [text[:20] for text in reference[::2]]


def test_seeded_requests_do_not_depend_on_the_batch(pair, plain, prompts):
    def seeded_from(first):
        each = range(first, first + len(prompts))
        return [SamplingParams(temperature=1.0, max_tokens=12, seed=i, top_p=0.95, ignore_eos=True) for i in each]

    seeded = seeded_from(100)
    alone = [token_ids(plain.generate([prompt], one))[0] for prompt, one in zip(prompts, seeded, strict=True)]
    assert token_ids(plain.generate(prompts, seeded)) == alone
    others = [SamplingParams(temperature=1.0, max_tokens=20) for _ in prompts]
    mixed = plain.generate([*prompts, *prompts], [*others, *seeded])
    assert token_ids(mixed[len(prompts) :]) == alone
    squeezed = plain_llm(pair.target, num_kv_blocks=12, max_model_len=32, max_num_batched_tokens=17)
    assert token_ids(squeezed.generate(prompts, seeded)) == alone
    assert squeezed.stats().num_preemptions > 0
    assert token_ids(plain.generate(prompts, seeded_from(0))) != alone


def test_prompts_that_share_a_seed_share_no_draws(pair):
    """Else the drafts of one would tell the other's, which are ranked against them, before they are drawn."""
    engine = plain_llm(pair.target).engine
    for prompt in ([1, 2, 3], [1, 2, 4], [1, 2, 3]):
        engine.add_request(prompt, SamplingParams(seed=7), str(prompt))
    first, second, again = (request.seed for request in engine.scheduler.waiting)
    assert first != second
    assert first == again, "but the same prompt with the same seed gives the same text"


def test_unseeded_requests_follow_the_engines_seed(pair, prompts):
    params = SamplingParams(temperature=1.0, max_tokens=8)
    one, same, other = (plain_llm(pair.target, seed=seed).generate(prompts, params) for seed in (1, 1, 2))
    assert token_ids(one) == token_ids(same) != token_ids(other)


@pytest.mark.parametrize("engine", ["plain", "speculating"])
def test_completions_of_one_request_differ_and_are_reproducible(request, engine, prompts):
    llm = request.getfixturevalue(engine)
    params = SamplingParams(n=4, temperature=1.0, max_tokens=10, seed=9, ignore_eos=True)
    first = llm.generate([prompts[0]], params)[0]
    assert [one.index for one in first.outputs] == [0, 1, 2, 3]
    completions = [one.token_ids for one in first.outputs]
    assert len({tuple(one) for one in completions}) == 4
    if engine == "plain":
        again = llm.generate([prompts[1], prompts[0]], params)[1]
        assert [one.token_ids for one in again.outputs] == completions


@pytest.mark.parametrize("rule", [{}, {"repetition_penalty": 1.5}, {"temperature": 0.8, "seed": 3}])
def test_logprobs_are_the_models_own(pair, speculating, prompts, rule):
    params = SamplingParams(**({"temperature": 0.0, "max_tokens": 16, "logprobs": 3, "ignore_eos": True} | rule))
    before = speculating.stats()
    # half of the batch does not ask: rows are compacted
    outputs = speculating.generate(
        prompts, [params if i % 2 else SamplingParams(temperature=0.0) for i in range(len(prompts))]
    )
    assert sum(speculating.stats().accepted) > sum(before.accepted)
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32)
    for output in outputs[::2]:
        assert output.outputs[0].logprobs is None
    for output in outputs[1::2]:
        completion = output.outputs[0]
        ids = torch.tensor([output.prompt_token_ids + completion.token_ids])
        with torch.inference_mode():
            exact = model(ids).logits[0, len(output.prompt_token_ids) - 1 : -1].log_softmax(-1)
        assert len(completion.logprobs) == len(completion.token_ids) == 16
        for row, token, entry in zip(exact, completion.token_ids, completion.logprobs, strict=True):
            assert entry.chosen.token_id == token
            assert entry.chosen.logprob == pytest.approx(row[token].item(), abs=1e-4)
            assert entry.chosen.rank == 1 + (row > row[token]).sum().item()
            assert [one.token_id for one in entry.top] == row.topk(3).indices.tolist()


def test_the_text_is_the_tokenizers_and_prompts_may_be_text(speculating, prompts):
    words = " ".join(f"w{i}" for i in prompts[0])
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    by_text, by_ids = speculating.generate([words, prompts[0]], params)
    assert by_text.prompt == words
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == prompts[0]
    assert by_text.outputs[0].text.split() == [f"w{i}" for i in by_ids.outputs[0].token_ids]


def test_prompt_and_output_share_the_models_length(pair, reference, prompts):
    llm = pair.llm(max_model_len=len(prompts[0]) + 6)
    greedy = {"temperature": 0.0, "ignore_eos": True}
    for max_tokens in (None, 100, 6):
        one = llm.generate([prompts[0]], SamplingParams(max_tokens=max_tokens, **greedy))[0].outputs[0]
        assert one.token_ids == reference[0][:6]
        assert one.finish_reason == "length"
    longest = prompts[0] + reference[0][:5]
    one = llm.generate([longest], SamplingParams(max_tokens=None, **greedy))[0].outputs[0]
    assert one.token_ids == reference[0][5:6]
    with pytest.raises(InvalidRequestError, match=f"prompt has {len(longest) + 1} tokens.*at most {len(longest) + 1}"):
        llm.generate([[*longest, 1]], SamplingParams(**greedy))


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, "prompt is empty"),
        ([3, VOCAB], {}, f"token id {VOCAB} is outside"),
        ([-1], {}, "token id -1 is outside"),
        ([1], {"min_tokens": 200, "max_tokens": None}, "min_tokens 200 does not fit"),
        ([1], {"logit_bias": {VOCAB: 1.0}}, "logit_bias names token ids outside"),
        ([1], {"allowed_token_ids": [-1]}, "allowed_token_ids names token ids outside"),
    ],
)
def test_what_cannot_be_served_is_refused_and_nothing_is_queued(plain, prompt, params, message):
    with pytest.raises(InvalidRequestError, match=message):
        plain.generate([[1, 2], prompt], [SamplingParams(), SamplingParams(**params)])
    assert not plain.engine.has_unfinished
    assert plain.engine.pool.num_free == plain.engine.pool.capacity


def test_a_full_queue_refuses_a_request_whole(pair):
    engine = plain_llm(pair.target, max_waiting=3).engine
    engine.add_request([1], SamplingParams(n=2), "a")
    with pytest.raises(QueueFullError, match="2 requests are waiting"):
        engine.add_request([1], SamplingParams(n=2), "b")
    engine.add_request([1], SamplingParams(), "c")
    assert len(engine.scheduler.waiting) == 3


def test_labels_of_requests_with_target_only_rules_teach_nothing(pair, prompts):
    """Penalties bend the target alone: what they do to acceptance says nothing about other requests."""
    llm = pair.llm(costs=None)
    estimator = llm.engine.speculation.estimator
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=8, repetition_penalty=1.8))
    assert sum(llm.stats().observed) > 0
    assert estimator.labels.counts.sum() == 0
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=8))
    assert estimator.labels.counts.sum() > 0
