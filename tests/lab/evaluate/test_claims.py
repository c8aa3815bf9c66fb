from __future__ import annotations

import numpy as np
import pytest
from tests.lab.evaluate.traces import half_greedy, memory_trace, one_run, with_drafts, with_labels, workloads
from tests.lab.synthetic import run_info

from adaverify.lab.evaluate.bootstrap import Estimate
from adaverify.lab.evaluate.claims import bias_of_drawn
from adaverify.lab.evaluate.evaluation import evaluate
from adaverify.lab.evaluate.judging import Claim, judge, ratio_of
from adaverify.lab.trace import Trace


def claims_of(trace: Trace) -> dict[tuple[str, str], Claim]:
    """Claims by drafter and first words."""
    found = evaluate(trace, replicates=200).claims
    return {(claim.drafter, claim.text.split(":")[0].split(" (")[0]): claim for claim in found}


def verdict(claims: dict[tuple[str, str], Claim], words: str, drafter: str = "one") -> str:
    (claim,) = [claim for (name, text), claim in claims.items() if name == drafter and text.startswith(words)]
    return claim.verdict


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (0.2, 0.3, "holds", "does not hold"),
        (-0.3, -0.2, "does not hold", "holds"),
        (-0.1, 0.3, "undecided", "undecided"),
        (None, None, "undecided", "undecided"),
    ],
)
def test_an_interval_on_one_side_of_the_bar_decides(low, high, above, below):
    estimate = Estimate(0.25, low, high)
    assert judge((estimate, "above", 0.1)) == above
    assert judge((estimate, "below", 0.1)) == below


def test_all_conditions_hold_or_one_of_them_fails():
    yes, no, unclear = Estimate(1, 0.9, 1.1), Estimate(-1, -1.1, -0.9), Estimate(0, -1, 1)
    assert judge((yes, "above", 0), (yes, "above", 0)) == "holds"
    assert judge((yes, "above", 0), (unclear, "above", 0)) == "undecided"
    assert judge((unclear, "above", 0), (no, "above", 0)) == "does not hold"


def test_a_claim_rests_on_its_bars_alone():
    numbers = {"a": Estimate(1, 0.9, 1.1), "b": Estimate(-1, -1.1, -0.9), "c": 0.5}
    assert Claim.judged("one", "text", {"a": ("above", 0.0)}, numbers).verdict == "holds"
    assert Claim.judged("one", "text", {"a": ("above", 0.0), "b": ("above", 0.0)}, numbers).verdict == "does not hold"
    assert Claim.judged("one", "text", {}, {}).verdict == "undecided"


def test_a_ratio_is_none_without_positive_parts():
    ones = np.ones(10)
    assert ratio_of(ones, ones, (0.0, 1.0), True) == Estimate()
    assert ratio_of(ones, ones, (1.0, 0.0), True) == Estimate()
    half = ratio_of(ones, 2 * ones, (1.0, 2.0), True)
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5))


def test_trimming_by_the_drawn_tokens_chance_is_biased_by_enumeration():
    assert bias_of_drawn() == pytest.approx(0.1)


@pytest.fixture(scope="module")
def as_the_paper_says() -> dict[tuple[str, str], Claim]:
    """Two drafters over four datasets: slopes by drafter, levels by dataset, a head that is good at position 1 only."""
    levels = {"a": -0.3, "b": -0.7, "c": -1.1, "d": -1.5}
    trace = memory_trace(
        *workloads("one", 0.6, levels, seed=0, num_steps=400), *workloads("two", 1.1, levels, seed=50, num_steps=400)
    )
    drafts = trace.drafts
    rng = np.random.default_rng(0)
    level = np.array(list(levels.values()))[drafts.dataset]
    # q_sampled says whether the draft will be accepted, most of the time
    hint = np.where(drafts.label == 1, 3.0, -3.0) + rng.normal(0, 3, len(drafts))
    at_first = np.where(drafts.position == 1, hint, rng.normal(0, 1, len(drafts)))
    head = np.where(np.array([run.drafter == "one" for run in trace.runs])[drafts.run], at_first, np.nan)
    return claims_of(
        with_drafts(
            trace,
            entropy=(1 - level).astype(np.float32),
            q_sampled=(0.5 / (1 + np.exp(-hint))).astype(np.float32),
            q_max=np.full(len(drafts), 0.5, np.float32),
            head_logit=head.astype(np.float32),
        )
    )


@pytest.mark.parametrize(
    "words",
    [
        "Fitting beats raw q_max",
        "One slope for all positions",
        "q_sampled tells more",
        "A trained head",
        "The slope is steady",
        "The first intercept falls",
        "The intercept measures",
    ],
)
def test_a_trace_made_as_the_paper_says_bears_it_out(as_the_paper_says, words):
    assert verdict(as_the_paper_says, words) == "holds"


def test_claims_on_all_drafters_and_on_those_with_a_head_alone(as_the_paper_says):
    assert verdict(as_the_paper_says, "The slope belongs to the pair", "all drafters") == "holds"
    assert verdict(as_the_paper_says, "q_sampled tells more", "all drafters") == "holds"
    assert [name for name, text in as_the_paper_says if text.startswith("A trained head")] == ["one"]


@pytest.fixture(scope="module")
def as_the_paper_does_not_say() -> dict[tuple[str, str], Claim]:
    """One drafter: a slope of its own for each dataset and for position 4, a head that is good later."""
    runs = []
    for i, dataset in enumerate("abcd"):
        (run,) = workloads("one", 0.3 + 0.5 * i, {dataset: 0.5 * i}, seed=i, num_steps=400)
        runs.append(run)
    trace = memory_trace(*runs)
    drafts, rng = trace.drafts, np.random.default_rng(1)
    # the slope has the other sign at position 4
    upside_down = (drafts.position == 4) & (drafts.label >= 0)
    chance = 1 / (1 + np.exp(0.8 * drafts.logit_q_max))
    label = np.where(upside_down, rng.random(len(drafts)) < chance, drafts.label).astype(np.int8)
    hint = np.where(label == 1, 2.0, -2.0) + rng.normal(0, 1, len(drafts))
    return claims_of(
        with_drafts(
            trace,
            label=label,
            entropy=(0.5 + 0.2 * drafts.dataset).astype(np.float32),
            q_sampled=rng.random(len(drafts)).astype(np.float32),
            q_max=np.full(len(drafts), 0.5, np.float32),
            head_logit=np.where(drafts.position > 1, hint, rng.normal(0, 1, len(drafts))).astype(np.float32),
        )
    )


@pytest.mark.parametrize(
    "words",
    ["One slope for all positions", "A trained head", "The slope is steady", "The first intercept falls"],
)
def test_a_trace_made_otherwise_does_not(as_the_paper_does_not_say, words):
    assert verdict(as_the_paper_does_not_say, words) == "does not hold"


def test_claims_are_judged_on_sampled_requests_where_there_are_greedy_ones_too():
    mixed = half_greedy(one_run(num_steps=200))
    drafts = mixed.drafts
    mixed = with_drafts(mixed, head_logit=drafts.logit_q_max)
    found = evaluate(mixed, replicates=50)
    assert {claim.sampling for claim in found.claims} == {"sampled"}
    assert all(claim.text.endswith("; judged on sampled requests") for claim in found.claims)
    sampled = mixed.labelled.select(mixed.labelled.temperature > 0)
    fitting = next(claim for claim in found.claims if claim.text.startswith("Fitting"))
    assert fitting.numbers["observed acceptance"] == pytest.approx(sampled.accepted.mean())
    head = next(claim for claim in found.claims if claim.text.startswith("A trained head"))
    assert head.numbers["AUC of head - AUC of logit q_max, positions: 1"].value is not None
    assert [sharing.sampling for sharing in found.sharing] == ["sampled"]


def test_a_pair_that_cannot_be_fitted_is_still_there_and_judges_nothing_together_with_one_that_can():
    trace = memory_trace(
        (run_info(run="a", drafter="one"), {"num_steps": 200}),
        (run_info(run="b", drafter="two"), {"num_steps": 200, "seed": 1}),
    )
    first = (trace.drafts.run == 0) & (trace.drafts.label >= 0)
    found = evaluate(with_labels(trace, first, 1), replicates=50)
    assert {part.drafter for part in found.parts} == {"all drafters", "one", "two"}
    assert [sharing.drafter for sharing in found.sharing] == ["all drafters", "one", "two"]
    claims = {claim.drafter: claim for claim in found.claims if claim.text.startswith("Fitting")}
    # the errors of raw and of fitted q_max would be of different drafts
    assert claims["all drafters"].numbers["ECE of q_max / ECE of fitted logit q_max"].value is None
    assert "too few requests" in claims["all drafters"].why
    assert claims["two"].numbers["ECE of q_max / ECE of fitted logit q_max"].value is not None


def test_a_correlation_over_few_datasets_is_no_verdict():
    """Three datasets in line, each with many requests: one in six ways to pair them is."""
    levels = {"a": 0.0, "b": -0.7, "c": -1.4}
    trace = memory_trace(*workloads("one", 0.6, levels, seed=0, num_steps=300))
    level = np.array(list(levels.values()))[trace.drafts.dataset]
    found = evaluate(with_drafts(trace, entropy=(1 - level).astype(np.float32)), replicates=100)
    for words, name in (("The first", "entropy"), ("The intercept", "acceptance - mean q_max of other requests")):
        claim = next(claim for claim in found.claims if claim.text.startswith(words))
        estimate = claim.numbers[f"correlation of first intercept and {name}"]
        assert estimate.low > 0.5 or estimate.high < -0.5
        assert (claim.verdict, claim.text[-15:]) == ("undecided", "over 3 datasets")
        assert "in 17% of all ways" in claim.why


def test_one_slope_for_one_position_is_no_finding():
    trace = one_run(num_steps=100)
    found = evaluate(with_labels(trace, trace.drafts.position > 1, -1), replicates=50)
    claim = next(claim for claim in found.claims if claim.text.startswith("One slope"))
    assert claim.numbers["AUC of K slopes - AUC of one"].high < 0.001
    assert (claim.verdict, claim.why) == ("undecided", "labels at fewer than two positions")


def test_a_trimmed_trace_decides_nothing_and_is_told_apart():
    law = {"num_steps": 200}
    trace = memory_trace((run_info(run="a"), law), (run_info(run="b", trimmed=True), law))
    found = evaluate(trace, replicates=50)
    assert [pair.label for pair in found.pairs] == ["tiny-draft (not trimmed)", "tiny-draft (trimmed)"]
    assert [warning.split(":")[0] for warning in found.warnings] == ["tiny-draft (trimmed)"]
    claims = [claim for claim in found.claims if claim.drafter == "tiny-draft (trimmed)"]
    assert {claim.verdict for claim in claims} == {"undecided"}
    assert all("record with --no-trim" in claim.why for claim in claims)
    assert "holds" in {claim.verdict for claim in found.claims if claim.drafter == "tiny-draft (not trimmed)"}


def test_under_coupled_verification_trimming_by_the_drawn_tokens_chance_is_lossless():
    law = {"num_steps": 60}
    coupled = run_info(run="b", drafter="two", rejection_sample_method="coupled")
    found = evaluate(memory_trace((run_info(run="a", drafter="one"), law), (coupled, law)), replicates=20)
    assert [claim.drafter for claim in found.claims if claim.text.startswith("q_sampled")] == ["one"]
    drafters = ("one", "two", "all drafters")
    assert [found.is_lossless("logit q_sampled", drafter) for drafter in drafters] == [False, True, False]
    rows = [row for row in found.to_dict()["measurements"] if row["score"] == "logit q_sampled"]
    assert {(row["drafter"], row["lossless"]) for row in rows} == {(d, d == "two") for d in drafters}


def test_missing_data_leaves_a_claim_undecided_and_says_what_is_missing():
    claims = evaluate(memory_trace((run_info(drafter="one"), {"num_steps": 100, "datasets": ("a",)})), replicates=50)
    why = {claim.text.split()[1]: claim.why for claim in claims.claims if claim.verdict == "undecided" and claim.why}
    assert why["trained"] == "no drafter with a confidence head was recorded"
    assert why["slope"] == "fewer than two datasets"
    assert why["first"] == "fewer than three datasets"


def test_an_error_within_the_noise_of_few_labels_is_no_proof_against_fitting():
    # with so few labels even a perfect predictor shows an error, and no ratio of 7 can be seen
    trace = one_run(num_steps=60, slope=1.0, intercepts=(-0.4, -0.4, -0.4, -0.4))
    claim = next(claim for claim in evaluate(trace, replicates=200).claims if claim.text.startswith("Fitting"))
    ratio = claim.numbers["ECE of q_max / ECE of fitted logit q_max"]
    assert ratio.high < 7
    assert claim.verdict == "undecided"
    assert "noise" in claim.why


def test_labels_all_alike_judge_nothing():
    trace = one_run(num_steps=60)
    claims = evaluate(with_labels(trace, trace.drafts.label >= 0, 1), replicates=50).claims
    assert {claim.verdict for claim in claims} == {"undecided"}
