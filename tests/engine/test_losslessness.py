"""Chi-square of short texts against their exact law; ``ADAVERIFY_SAMPLES=200000`` runs the full bar."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.drafters.support import METHODS, save_echoing_target, trained
from tests.support import Pair, plain_llm, save_related_model, save_tiny_model
from transformers import LlamaForCausalLM

from adaverify import SamplingParams
from adaverify.engine.stats import EngineStats
from adaverify.lab.losslessness import Conclusion, check_losslessness, exact_law
from adaverify.policy.cost import CostCurve, CostTable

SAMPLES = int(os.environ.get("ADAVERIFY_SAMPLES", "12000"))
PROMPT, LENGTH, K = [3], 4, 3
SEATS = 256
DRAFT = CostCurve((1, SEATS), (1.0, 1.5))
# trims the second and third drafts of a block
GENTLE = CostTable(CostCurve((1, SEATS, 2 * SEATS, 8 * SEATS), (1.0, 2.0, 3.5, 40.0)), DRAFT)
# a cliff behind the batch and a few drafts: even first drafts compete
CLIFF = CostTable(CostCurve((1, SEATS + 96, SEATS + 104, 8 * SEATS), (1.0, 1.2, 40.0, 400.0)), DRAFT)


def law_of(target, params: SamplingParams) -> dict[tuple[int, ...], float]:
    return exact_law(LlamaForCausalLM.from_pretrained(target), PROMPT, LENGTH, params)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Pair:
    """16 tokens, distributions flat enough that many texts occur."""
    folder = tmp_path_factory.mktemp("small")
    target = save_tiny_model(folder / "target", seed=1, scale=2.0)
    return Pair(target, save_related_model(folder / "drafter", target, noise=0.03, seed=2))


def build(
    pair: Pair,
    sampling: str,
    costs: CostTable | None = GENTLE,
    method: str = "standard",
    seats: int = SEATS,
    **speculative: Any,
):
    return pair.llm(
        speculative={"rejection_sample_method": method} | speculative,
        costs=costs,
        k=K,
        sampling=sampling,
        max_num_seqs=seats,
        max_num_batched_tokens=8 * SEATS,
        max_model_len=32,
    )


def draw(llm, params: SamplingParams, count: int) -> list[tuple[int, ...]]:
    outputs = llm.generate([PROMPT] * count, params)
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
@pytest.mark.parametrize(
    ("temperature", "top_p", "costs"),
    [(1.0, 1.0, CLIFF), (1.0, 0.9, CLIFF), (0.7, 0.9, GENTLE)],
    ids=["T=1 cliff", "T=1 top-p=.9 cliff", "T=.7 top-p=.9 gentle"],
)
def test_adaptive_verification_keeps_the_targets_law(small, sampling, temperature, top_p, costs):
    params = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=LENGTH, ignore_eos=True)
    llm = build(small, sampling, costs)
    result = check_losslessness(draw(llm, params, SAMPLES), law_of(small.target, params), llm.stats())
    print(result)
    assert result.conclusion is Conclusion.EXACT, result
    assert result.num_samples == SAMPLES
    assert result.num_cells > 100
    assert result.drafted > result.admitted > result.accepted > SAMPLES / 12


@pytest.fixture(scope="module")
def echoing(tmp_path_factory) -> Path:
    return save_echoing_target(tmp_path_factory.mktemp("echoing"), vocab_size=16)


@pytest.mark.slow
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("method", METHODS)
def test_trained_drafters_keep_the_targets_law(echoing, tmp_path, method, top_p):
    """DSpark's own head decides, the estimator with the others."""
    params = SamplingParams(temperature=1.0, top_p=top_p, max_tokens=LENGTH, ignore_eos=True)
    llm = build(trained(tmp_path, echoing, method), "probabilistic", CLIFF)
    result = check_losslessness(draw(llm, params, SAMPLES // 2), law_of(echoing, params), llm.stats())
    print(result)
    assert result.conclusion is Conclusion.EXACT, result
    assert result.num_cells > 60
    assert result.drafted > result.admitted > result.accepted > SAMPLES / 50


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["few", "many"])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp"])
def test_choosing_the_depth_of_drafting_keeps_the_targets_law(small, echoing, tmp_path, method, batch):
    """Few requests end their blocks early, by what has been drafted; many compete at a depth chosen before."""
    pair = small if method == "draft_model" else trained(tmp_path, echoing, method)
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True)
    costs = {
        "few": CostTable(CostCurve((1, 64), (1.0, 1.2)), CostCurve((1,), (0.45,)), CostCurve((1,), (0.15,))),
        "many": CostTable(CLIFF.verify, CostCurve((1,), (0.03,)), CostCurve((1,), (0.01,))),
    }[batch]
    llm = build(pair, "probabilistic", costs, seats=3 if batch == "few" else SEATS, adaptive_draft_depth=True)
    result = check_losslessness(draw(llm, params, SAMPLES // 4), law_of(pair.target, params), llm.stats())
    print(result)
    assert result.conclusion is Conclusion.EXACT, result
    assert result.drafted >= result.admitted > result.accepted > SAMPLES / 50
    assert llm.stats().num_early_stops > 0 or batch == "many"


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["probabilistic", "greedy"])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "dflash2"])
def test_coupled_verification_keeps_the_targets_law(small, echoing, tmp_path, method, top_p, sampling):
    """Trimmed by margins, which tell of the draw, under a budget from the present block."""
    pair = small if method == "draft_model" else trained(tmp_path, echoing, method)
    params = SamplingParams(temperature=1.0, top_p=top_p, max_tokens=LENGTH, ignore_eos=True)
    llm = build(pair, sampling, CLIFF, "coupled")
    result = check_losslessness(draw(llm, params, SAMPLES // 2), law_of(pair.target, params), llm.stats())
    print(result)
    assert result.conclusion is Conclusion.EXACT, result
    assert result.num_cells > 60
    assert result.drafted > result.admitted > result.accepted > SAMPLES / 50


@pytest.mark.slow
def test_without_a_drafter_races_give_the_targets_law(small):
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=LENGTH, ignore_eos=True)
    llm = plain_llm(small.target, max_num_seqs=SEATS, max_num_batched_tokens=8 * SEATS, max_model_len=32)
    samples = draw(llm, params, SAMPLES // 2)
    result = check_losslessness(
        samples, law_of(small.target, params), EngineStats(drafted=[2], admitted=[1], accepted=[1])
    )
    print(result)
    assert result.conclusion is Conclusion.EXACT, result


def score_by_the_drawn_token(llm):
    """Trim by q of the drawn token, which the design forbids with standard verification."""
    drafter = llm.engine.speculation.drafter
    drafter.keeps_details = True
    propose = drafter.propose

    def propose_with_forbidden_scores(*args):
        block = propose(*args)
        if block.laws is None or block.depth == 0:
            return block
        drawn = block.laws.q.gather(-1, block.token_ids.reshape(-1, 1)).view_as(block.features)
        return replace(block, features=torch.logit(drawn, eps=1e-6))

    drafter.propose = propose_with_forbidden_scores
    return llm


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standard", "coupled"])
def test_scoring_the_drawn_token_is_found_out(small, method):
    """The negative control: the first case above with a forbidden score; and that coupled verification allows it."""
    params = SamplingParams(temperature=1.0, max_tokens=LENGTH, ignore_eos=True)
    llm = score_by_the_drawn_token(build(small, "probabilistic", CLIFF, method))
    result = check_losslessness(draw(llm, params, 2 * SAMPLES), law_of(small.target, params), llm.stats())
    print(result)
    assert result.drafted > result.admitted > 0
    if method == "coupled":
        assert result.conclusion is Conclusion.EXACT
    else:
        assert result.conclusion is Conclusion.BIASED
        assert result.p_value < 1e-6


@pytest.mark.parametrize("case", ["nothing trimmed", "nothing admitted", "nothing drafted"])
def test_says_inconclusive_where_nothing_was_tested(small, case):
    costs = {"nothing trimmed": None, "nothing admitted": CostTable(CostCurve((1, 64), (1.0, 1e9)))}.get(case, GENTLE)
    params = SamplingParams(temperature=1.0, max_tokens=1 if case == "nothing drafted" else 3, ignore_eos=True)
    llm = build(small, "probabilistic", costs)
    samples = draw(llm, params, 500)
    law = exact_law(LlamaForCausalLM.from_pretrained(small.target), PROMPT, params.max_tokens, params)
    result = check_losslessness(samples, law, llm.stats())
    assert result.conclusion is Conclusion.INCONCLUSIVE
    assert (result.drafted == 0) == (case == "nothing drafted")
    assert (result.admitted == 0) == (case != "nothing trimmed")


def test_exact_law_is_the_product_of_conditionals(small):
    model = LlamaForCausalLM.from_pretrained(small.target)
    law = exact_law(model, PROMPT, 2, SamplingParams(temperature=0.5))
    assert len(law) == 16**2
    assert sum(law.values()) == pytest.approx(1.0)
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, 9]])).logits[0] / 0.5
    first, second = logits[-2].softmax(-1)[9], logits[-1].softmax(-1)[2]
    assert law[9, 2] == pytest.approx(float(first * second), rel=1e-4)
    nucleus = exact_law(model, PROMPT, 2, SamplingParams(temperature=0.5, top_p=0.5))
    assert len(nucleus) < len(law)
    assert sum(nucleus.values()) == pytest.approx(1.0)


def check(counts: dict[tuple[int, ...], int], law: dict[tuple[int, ...], float]):
    samples = [text for text, count in counts.items() for _ in range(count)]
    return check_losslessness(samples, law, EngineStats(drafted=[9], admitted=[5], accepted=[2]))


def test_chi_square_on_known_counts():
    law = {(0,): 0.5, (1,): 0.3, (2,): 0.2}
    fair = check({(0,): 500, (1,): 300, (2,): 200}, law)
    assert (fair.conclusion, fair.p_value, fair.num_cells) == (Conclusion.EXACT, 1.0, 3)
    # (30^2/500 + 30^2/300) = 4.8 with 2 degrees: exp(-2.4)
    off = check({(0,): 530, (1,): 270, (2,): 200}, law)
    assert off.p_value == pytest.approx(0.0907, abs=1e-4)
    assert off.conclusion is Conclusion.EXACT
    assert check({(0,): 600, (1,): 200, (2,): 200}, law).conclusion is Conclusion.BIASED


def test_rare_texts_are_pooled_and_impossible_ones_are_proof():
    law = {(0,): 0.95} | {(i,): 0.001 for i in range(1, 51)}
    counts = {(0,): 950} | {(i,): 1 for i in range(1, 51)}
    result = check(counts, law)
    assert 2 <= result.num_cells <= 11
    assert result.p_value > 0.9
    assert check({(0,): 900} | {(i,): 2 for i in range(1, 51)}, law).conclusion is Conclusion.BIASED
    assert check(counts | {(99,): 1}, law).p_value == 0.0
