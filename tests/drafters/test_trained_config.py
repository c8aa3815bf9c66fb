"""What a configuration of a trained drafter may say, and where its confidences come from."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from tests.drafters.scratch import CLOSE
from tests.drafters.support import METHODS, record, save_drafter, save_echoing_target, trained
from tests.support import Pair, random_prompts, save_tiny_model

from adaverify import SamplingParams
from adaverify.drafters.dflash import DFlashDrafter
from adaverify.errors import ConfigError
from adaverify.policy import RobustEstimator

VOCAB = 24
TEMPERATURES = torch.tensor([2.0, 0.5, 4.0, 1.0])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("configured")
    target = save_echoing_target(folder / "target", VOCAB, scale=2.0, echo=1.0)
    pairs = {method: trained(folder / method, target, method) for method in METHODS}
    headless = trained(
        folder / "headless", target, "dspark", enable_confidence_head=False, confidence_temperatures=None
    )
    return pairs | {"headless": headless}


@pytest.mark.parametrize(
    ("name", "k", "message"),
    [("dflash", 4, "lower it to 3"), ("dflash2", 9, "lower it to 3"), ("dspark", 5, "lower it to 4")],
)
def test_a_block_holds_so_many_drafts(pairs, name, k, message):
    with pytest.raises(ConfigError, match=rf"num_speculative_tokens {k} .*{pairs[name].drafter.name}.*{message}"):
        pairs[name].llm(k=k)


@pytest.mark.parametrize(("name", "method"), [("eagle3", "mtp"), ("dspark", "dflash"), ("dflash", "dflash2")])
def test_the_method_is_that_of_the_checkpoint(pairs, name, method):
    with pytest.raises(ConfigError, match=f"{pairs[name].drafter}.* for method '{name}', not '{method}'; name that"):
        replace(pairs[name], method=method).llm()


@pytest.mark.parametrize("name", ["mtp", "dflash", "headless"])
def test_a_head_that_is_not_there_cannot_be_asked_for(pairs, name):
    with pytest.raises(ConfigError, match=f"'head' .*{pairs[name].drafter}.* no confidence head; use 'estimator'"):
        pairs[name].llm(speculative={"draft_confidence": "head"})


@pytest.mark.parametrize("method", METHODS)
def test_a_drafter_of_another_target_is_refused(pairs, tmp_path, method):
    other = save_tiny_model(tmp_path / "other", seed=1, vocab_size=16)
    with pytest.raises(ConfigError, match=f"{pairs[method].drafter}.*24 tokens, the target's 16.*another target"):
        replace(pairs[method], target=other).llm()


def test_a_checkpoint_without_weights_or_with_another_shape_is_refused(pairs, tmp_path):
    folder = tmp_path / "drafter"
    shutil.copytree(pairs["mtp"].drafter, folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"holds neither model\.safetensors nor .* fetch"):
        replace(pairs["mtp"], drafter=folder).llm()
    save_drafter(folder, pairs["mtp"].target, "dspark", markov_rank=5)
    (folder / "config.json").write_text((pairs["dspark"].drafter / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"markov_w1.weight is \[24, 5\], expected \[24, 6\]"):
        Pair(pairs["dspark"].target, folder, "dspark").llm()


def test_the_budget_may_read_this_block_with_dflash_only(pairs):
    """Copies of one text, each with its own noise: with DFlash alone no law of a block depends on its draws."""
    params = SamplingParams(temperature=4.0, max_tokens=5, ignore_eos=True, allowed_token_ids=[4])
    for method in METHODS:
        llm = pairs[method].llm(costs=None, k=3)
        drafter = llm.engine.speculation.drafter
        assert drafter.knows_q_before_draw == (type(drafter) is DFlashDrafter) == (method == "dflash")
        calls = record(llm)
        llm.generate([[1, 2, 3]] * 12, params)
        call = next(call for call in calls if call.texts == [[1, 2, 3, 4]] * 12)
        assert len(set(map(tuple, call.block.token_ids.tolist()))) > 6
        features = call.block.features
        torch.testing.assert_close(features[:, 0], features[:1, 0].expand(12), **CLOSE)
        spread = (features - features[:1]).abs().amax(dim=0)[1:]
        assert bool((spread < 1e-3).all()) == (method == "dflash")


@pytest.mark.parametrize(
    ("name", "asked", "source"),
    [
        ("dspark", "auto", "head"), ("dspark", "head", "head"), ("dspark", "estimator", "estimator"),
        ("headless", "auto", "estimator"), ("eagle3", "auto", "estimator"),
    ],
)  # fmt: skip
def test_where_confidences_come_from(pairs, name, asked, source):
    llm = pairs[name].llm(k=3, max_num_seqs=2, speculative={"draft_confidence": asked})
    speculation, rounds = llm.engine.speculation, []
    admit = speculation.admit

    def recording(plan, block, budget):
        estimated = speculation.estimator.predict(
            speculation._pad(block.features, torch.nan), speculation._rows(plan.decodes)
        )
        current = admit(plan, block, budget)
        if current is not None:
            rounds.append((current, estimated))
        return current

    speculation.admit = recording
    calls = record(llm)
    llm.generate(random_prompts(8, VOCAB, seed=2), SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
    assert len(rounds) == len(calls) > 100
    for current, estimated in rounds:
        depth = current.block.depth
        if source == "estimator":
            assert torch.equal(current.confidences.nan_to_num(-1), estimated.nan_to_num(-1))
        else:
            assert torch.equal(current.confidences[:, :depth], current.block.confidence.sigmoid())
            assert current.confidences[:, depth:].isnan().all()
    # 100 steps refit an estimator that learns
    learnt = llm.stats().estimator_intercepts != pytest.approx(RobustEstimator(3, 1).intercepts.tolist())
    assert learnt == (source == "estimator")


def test_scaling_divides_log_odds_by_the_checkpoints_temperatures(pairs):
    blocks = []
    for scaled in (False, True):
        llm = pairs["dspark"].llm(costs=None, k=4, speculative={"scale_draft_confidence": scaled})
        calls = record(llm)
        llm.generate(random_prompts(8, VOCAB, seed=2), SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        blocks.append([call.block for call in calls])
    for plain, scaled in zip(*blocks, strict=True):
        # nothing is trimmed, so that both draft the same
        assert plain.token_ids.tolist() == scaled.token_ids.tolist()
        torch.testing.assert_close(scaled.confidence, plain.confidence / TEMPERATURES[: plain.depth])
