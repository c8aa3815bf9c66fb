"""What goes wrong in one request stays there: NaN, aborts, drafters that fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support import Pair, plain_llm, save_tiny_gpt2, save_tiny_model, token_ids

from adaverify import SamplingParams
from adaverify.policy.cost import CostCurve, CostTable

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


# <unk>: no prompt and no text holds it
POISON = 46


def poison_embedding(runner, token: int = POISON) -> None:
    """Every key, value and logit from ``token`` on is NaN, in whatever request it stands."""
    runner.model.get_input_embeddings().weight[token] = torch.nan


def is_clean(llm) -> bool:
    return llm.engine.pool.num_free == llm.engine.pool.capacity and not llm.engine.has_unfinished


@pytest.mark.parametrize("speculating", [False, True])
@pytest.mark.parametrize("place", [0, -1])
def test_nan_ends_its_own_request_and_no_other(pair, prompts, reference, speculating, place):
    llm = pair.llm() if speculating else plain_llm(pair.target)
    poison_embedding(llm.engine.runner)
    sick = list(prompts[5])
    sick[place] = POISON
    outputs = llm.generate([*prompts[:5], sick, *prompts[6:]], GREEDY)
    failed = outputs[5].outputs[0]
    assert failed.finish_reason == "error"
    assert "not finite" in failed.error
    assert failed.token_ids == []
    for i, output in enumerate(outputs):
        if i != 5:
            assert output.outputs[0].error is None
            assert output.outputs[0].token_ids[: len(reference[i])] == reference[i][:12]
    assert llm.stats().finished["error"] == 1
    assert is_clean(llm)


@pytest.mark.parametrize("speculating", [False, True])
@pytest.mark.parametrize("max_tokens", [128, 20], ids=["whole", "chunked"])
def test_blocks_of_a_failed_request_are_safe_for_the_next(pair, prompts, reference, speculating, max_tokens):
    options = {"num_kv_blocks": 12, "max_model_len": 48, "max_num_batched_tokens": max_tokens}
    llm = pair.llm(**options) if speculating else plain_llm(pair.target, **options)
    poison_embedding(llm.engine.runner)
    if speculating:
        poison_embedding(llm.engine.speculation.drafter.runner)
    for _ in range(2):
        sick = llm.generate([[POISON, *range(40)]], GREEDY)[0].outputs[0]
        assert sick.finish_reason == "error", "and its blocks are not found in the prefix cache as if they were good"
        outputs = llm.generate(prompts, GREEDY)
        assert [one.outputs[0].error for one in outputs] == [None] * len(prompts)
        assert [text[: len(r)] for text, r in zip(token_ids(outputs), reference, strict=True)] == [
            text[:12] for text in reference
        ]


def test_an_aborted_sick_prompt_leaves_its_blocks_safe(pair, prompts):
    """Not one of its rows had been sampled, so nobody has seen yet that it is sick."""
    llm = plain_llm(pair.target, num_kv_blocks=12, max_model_len=48, max_num_batched_tokens=20)
    poison_embedding(llm.engine.runner)
    llm.engine.add_request([POISON, *range(40)], GREEDY, "sick")
    llm.engine.step()
    llm.engine.abort("sick")
    outputs = llm.generate(prompts, GREEDY)
    assert [one.outputs[0].error for one in outputs] == [None] * len(prompts)


def test_nan_in_the_middle_of_a_text(pair, prompts, reference, greedy):
    """The row after a certain token is NaN: what came before has been handed out, the rest of the batch goes on."""
    llm = pair.llm(k=1)
    place = next(i for i, token in enumerate(reference[1]) if i > 2 and token not in prompts[1] + reference[1][:i])
    victim = reference[1][place]
    poison_embedding(llm.engine.runner, victim)
    outputs = llm.generate(prompts, greedy)
    sick = [victim in [*prompt, *text[:-1]] for prompt, text in zip(prompts, reference, strict=True)]
    assert [output.outputs[0].error is not None for output in outputs] == sick
    assert False in sick
    for output, text, bad in zip(outputs, reference, sick, strict=True):
        assert bad or output.outputs[0].token_ids == text
    assert outputs[1].outputs[0].token_ids == reference[1][: place + 1]
    assert is_clean(llm)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
def test_a_drafter_that_is_not_finite_drafts_nothing(pair, prompts, reference, temperature, sampling):
    llm = pair.llm(costs=None, sampling=sampling)
    with torch.inference_mode():
        llm.engine.speculation.drafter.runner.model.lm_head.weight[3] = torch.nan
    params = SamplingParams(temperature=temperature, max_tokens=12, ignore_eos=True, seed=1)
    output = llm.generate([prompts[0]], params)[0].outputs[0]
    assert output.error is None
    assert len(output.token_ids) == 12
    assert sum(llm.stats().drafted) == 0, "what is not finite counts as no draft"
    assert sum(llm.stats().admitted) == 0
    if temperature == 0.0:
        assert output.token_ids == reference[0][:12]
    else:
        # verification that never gets a draft to see
        trimmed = pair.llm(costs=CostTable(CostCurve((1, 64), (1.0, 1e9))), sampling=sampling)
        assert output.token_ids == trimmed.generate([prompts[0]], params)[0].outputs[0].token_ids
        assert sum(trimmed.stats().admitted) == 0


def test_a_sick_draft_leaves_its_neighbours_drafts_alone(pair, prompts, greedy):
    """The sick request ends early, so that the drafter runs past its blocks while the others draft in full."""
    short = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    admitted = []
    for sick in [1], [POISON]:
        llm = pair.llm(costs=None)
        poison_embedding(llm.engine.speculation.drafter.runner)
        llm.generate([sick, *prompts], [short, *[greedy] * len(prompts)])
        admitted.append(sum(llm.stats().admitted[1:]))
    assert admitted[0] == admitted[1] > 0


@pytest.mark.parametrize("speculating", [False, True])
def test_abort_frees_blocks_in_every_state(pair, prompts, reference, speculating):
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 12, "max_model_len": 64, "num_kv_blocks": 20}
    llm = pair.llm(**options) if speculating else plain_llm(pair.target, **options)
    engine = llm.engine
    for i, prompt in enumerate(prompts[:8]):
        engine.add_request(prompt, GREEDY, str(i))
    engine.add_request(prompts[8], SamplingParams(temperature=1.0, n=3), "8")
    texts: dict[str, list[int]] = {}
    for step in range(200):
        for delta in engine.step():
            texts.setdefault(delta.request_id, []).extend(delta.token_ids)
        if step in (1, 3, 5):
            engine.abort(str(step))
            engine.abort(str(step))
        if step == 2:
            engine.abort("8")
        if not engine.has_unfinished:
            break
    assert is_clean(llm)
    engine.abort("0")
    engine.abort("never there")
    for i in (0, 2, 4, 6, 7):
        assert texts[str(i)][: len(reference[i])] == reference[i][:12]
    assert llm.stats().finished["abort"] == 3 + 3


def test_a_target_with_more_padded_tokens_than_the_drafter(tmp_path):
    """Ids beyond the tokenizer's are valid for the target; a client may send them."""
    target = save_tiny_model(tmp_path / "t", seed=1, padded_vocab=8)
    drafter = save_tiny_model(tmp_path / "d", seed=2)
    llm = Pair(target, drafter).llm(costs=None)
    prompt = [3, 20, 5]
    assert token_ids(llm.generate([prompt], GREEDY)) == token_ids(plain_llm(target).generate([prompt], GREEDY))


def test_drafting_never_leaves_the_positions_of_the_drafter(tmp_path):
    """A request at the end of its room drafts beside one that has room left; learned positions have an end."""
    target = save_tiny_gpt2(tmp_path / "t", seed=1)
    drafter = save_tiny_gpt2(tmp_path / "d", seed=2)
    llm = Pair(target, drafter).llm(costs=None, k=4)
    prompts = [list(range(1, 27)), [1, 2], [3]]
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    assert token_ids(outputs) == token_ids(plain_llm(target).generate(prompts, params))
    assert [len(ids) for ids in token_ids(outputs)] == [32 - len(prompt) for prompt in prompts]


def test_a_rejected_draft_that_is_not_finite_for_the_target_does_no_harm(pair, prompts, reference, greedy):
    """The text never holds the token, so it must not matter that it was drafted, verified and rejected."""
    llm = pair.llm(costs=None, sampling="greedy")
    poison_embedding(llm.engine.runner)
    drafter = llm.engine.speculation.drafter
    propose = drafter.propose

    def propose_poison_last(*args):
        block = propose(*args)
        tokens = block.token_ids.clone()
        tokens[:, 2:] = POISON
        return replace(block, token_ids=tokens)

    drafter.propose = propose_poison_last
    outputs = llm.generate(prompts, greedy)
    assert sum(llm.stats().admitted[2:]) > 0
    assert [one.outputs[0].error for one in outputs] == [None] * len(prompts)
    assert token_ids(outputs) == reference
