from __future__ import annotations

import pytest
import torch
from tests.support import Pair, plain_llm, save_related_model, save_tiny_model, save_tokenizer, token_ids
from transformers import AutoTokenizer

from adaverify import SamplingParams
from adaverify.drafters.vocabulary import align_logits, check_same_tokenizer
from adaverify.errors import ConfigError


def tokenizer(folder, size: int):
    save_tokenizer(folder, size)
    return AutoTokenizer.from_pretrained(folder)


def test_the_same_tokens_pass(tmp_path):
    check_same_tokenizer("big", tokenizer(tmp_path / "a", 12), "small", tokenizer(tmp_path / "b", 12))


def test_other_tokens_are_refused_naming_both_and_an_example(tmp_path):
    ours, theirs = tokenizer(tmp_path / "a", 12), tokenizer(tmp_path / "b", 14)
    with pytest.raises(ConfigError) as caught:
        check_same_tokenizer("org/big", ours, "org/small", theirs)
    message = str(caught.value)
    for part in ("'org/big'", "'org/small'", "target 12 tokens, drafter 14", "'<eos>' is 11 in the target and 13"):
        assert part in message


@pytest.mark.parametrize("width", [5, 8, 11])
def test_align_logits(width):
    logits = torch.randn(3, width)
    aligned = align_logits(logits, 8)
    assert aligned.shape == (3, 8)
    torch.testing.assert_close(aligned[:, : min(width, 8)], logits[:, :8])
    assert aligned[:, width:].eq(-torch.inf).all()


@pytest.mark.parametrize(("of_target", "of_drafter"), [(0, 8), (8, 0), (8, 24)])
@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
def test_models_padded_differently_work_together(tmp_path, of_target, of_drafter, sampling):
    target = save_tiny_model(tmp_path / "t", seed=1, vocab_size=24, padded_vocab=of_target)
    drafter = save_tiny_model(tmp_path / "d", seed=2, vocab_size=24, padded_vocab=of_drafter)
    # no text may hold the padding's ids: as in real models, they are never trained
    params = SamplingParams(temperature=0.0, max_tokens=12, allowed_token_ids=list(range(24)), ignore_eos=True)
    prompts = [[1, 2, 3], [4], [5, 6]]
    llm = Pair(target, drafter).llm(costs=None, sampling=sampling)
    assert token_ids(llm.generate(prompts, params)) == token_ids(plain_llm(target).generate(prompts, params))
    drawn = SamplingParams(temperature=1.0, max_tokens=12, allowed_token_ids=list(range(24)), ignore_eos=True)
    assert all(len(text) == 12 for text in token_ids(llm.generate(prompts, drawn)))
    assert sum(llm.stats().admitted) > 0


def test_differing_tokenizers_are_refused_at_start(tmp_path):
    target = save_tiny_model(tmp_path / "target", seed=1, vocab_size=16)
    other = save_tiny_model(tmp_path / "other", seed=2, vocab_size=18)
    with pytest.raises(ConfigError, match=r"drafter '.*other' cannot draft for target '.*target'.*same model family"):
        Pair(target, other).llm(costs=None)
    related = save_related_model(tmp_path / "related", target, noise=0.1, seed=3)
    assert Pair(target, related).llm(costs=None).engine.speculation is not None
