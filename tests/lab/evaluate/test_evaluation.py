from __future__ import annotations

import json

import numpy as np
import pytest
from tests.lab.evaluate.traces import memory_trace, one_run, with_drafts, with_labels
from tests.lab.synthetic import run_info

from adaverify.errors import TraceError
from adaverify.lab.evaluate import evaluate, metrics, prequential
from adaverify.lab.evaluate.evaluation import Evaluation
from adaverify.lab.evaluate.parts import Part
from adaverify.lab.evaluate.scores import all_scores
from adaverify.policy import OnlineAcceptanceEstimator

EVERYTHING = Part("tiny-draft")


@pytest.fixture(scope="module")
def trace():
    made = one_run(num_steps=400)
    return with_drafts(made, head_logit=(made.drafts.logit_q_max - 1).astype(np.float32))


@pytest.fixture(scope="module")
def found(trace) -> Evaluation:
    slow = {"slow": lambda run, num_requests: OnlineAcceptanceEstimator(run.num_speculative_tokens, refit_interval=200)}
    return evaluate(trace, replicates=100, estimators=slow)


def test_every_score_is_there_and_says_whether_it_is_lossless(found):
    scores = {score.name: (score.lossless, score.how) for score in found.scores}
    assert scores == {
        "logit q_max": (True, "fitted"),
        "entropy": (True, "fitted"),
        "margin": (True, "fitted"),
        "-log(-log q_max)": (True, "fitted"),
        "logit q_sampled": (False, "fitted"),
        "-log(-log q_sampled)": (False, "fitted"),
        "head, fitted": (True, "fitted"),
        "logit q_max, K slopes": (True, "fitted"),
        "q_max": (True, "as it is"),
        "head": (True, "as it is"),
        "as served": (True, "as it is"),
        "overlap of p and q": (True, "as it is"),
        "online: paper": (True, "online"),
        "online: robust": (True, "online"),
        "slow": (True, "online"),
        "online: river": (True, "online"),
    }


def test_scores_are_measured_as_what_they_are(trace, found):
    labelled = trace.labelled
    f, label = labelled.logit_q_max.astype(np.float64), labelled.accepted
    given = {
        "q_max": 1 / (1 + np.exp(-f)),
        "head": 1 / (1 + np.exp(1 - f)),
        "as served": labelled.prediction,
        "overlap of p and q": labelled.overlap,
        "online: paper": prequential(trace),
    }
    for name, p in given.items():
        m = found.measurements[name][EVERYTHING]
        assert m.log_loss.value == pytest.approx(metrics.log_loss(p, label), abs=1e-7), name
        assert m.auc.value == pytest.approx(metrics.auc(p, label), abs=1e-6), name
    assert found.measurements["slow"][EVERYTHING].log_loss.value != pytest.approx(
        found.measurements["online: paper"][EVERYTHING].log_loss.value, abs=1e-5
    )


def test_fitting_mends_what_is_only_miscalibrated(found):
    raw, fitted, best = (
        found.measurements[name][EVERYTHING] for name in ("head", "head, fitted", "overlap of p and q")
    )
    assert raw.log_loss.low > fitted.log_loss.high
    assert raw.ece.low > fitted.ece.high
    assert fitted.log_loss.value == pytest.approx(best.log_loss.value, abs=0.005)


def test_the_document_is_json_without_nan_and_holds_everything(found):
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert set(document) == {
        "warnings",
        "settings",
        "counts",
        "runs",
        "scores",
        "absent",
        "measurements",
        "shared_slope",
        "coefficients",
        "refits",
        "claims",
    }
    row = next(r for r in document["measurements"] if r["score"] == "logit q_max" and r["positions"] == "from 2")
    assert row["drafter"] == "tiny-draft"
    assert row["auc"]["low"] < row["auc"]["value"] < row["auc"]["high"]
    assert document["counts"]["labelled"] == row["n"] + sum(
        r["n"] for r in document["measurements"] if r["score"] == "logit q_max" and r["positions"] == "1"
    )
    assert document["refits"][0]["refit"] == [0, 1, 2, 3]
    assert {c["verdict"] for c in document["claims"]} <= {"holds", "does not hold", "undecided"}


def test_what_was_not_recorded_is_absent_with_a_reason():
    made = one_run(num_steps=60)
    nothing = np.full(len(made.drafts), np.nan, np.float32)
    found = evaluate(with_drafts(made, overlap=nothing, prediction=nothing), replicates=20)
    assert found.absent == {
        "head, fitted": "no drafter with a confidence head was recorded",
        "head": "no drafter with a confidence head was recorded",
        "as served": "no prediction was recorded",
        "overlap of p and q": "the overlap of p and q was not recorded",
    }


def test_a_missing_peer_is_said_to_be_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "river.linear_model", None)
    assert "pip install river" in evaluate(one_run(num_steps=30), replicates=20).absent["online: river"]


def test_a_peer_of_a_part_is_set_against_the_estimator_on_that_part():
    from adaverify.lab.evaluate.sample import Sample

    made = one_run(num_steps=100)
    scores = {score.name: score for score in all_scores(made, Sample.of(made), max_peer_labels=500)}
    peer, same = scores["online: river"], scores["online: paper, river's part"]
    assert "first part of every run" in peer.note
    assert np.isfinite(peer.values).sum() == 500
    np.testing.assert_array_equal(np.isfinite(peer.values), np.isfinite(same.values))


def test_the_overlap_is_set_against_fitted_q_max_on_the_drafts_that_have_one():
    made = one_run(num_steps=100)
    part = np.where(made.drafts.request % 2 == 0, made.drafts.overlap, np.nan).astype(np.float32)
    found = evaluate(with_drafts(made, overlap=part), replicates=20)
    overlap, same, fitted = (
        found.measurements[name][EVERYTHING]
        for name in ("overlap of p and q", "logit q_max, where overlap", "logit q_max")
    )
    np.testing.assert_array_equal(overlap.counts, same.counts)
    assert same.n < fitted.n
    assert overlap.log_loss.value < same.log_loss.value + 0.01


def test_an_empty_label_set_is_never_scored():
    made = one_run(num_steps=10)
    with pytest.raises(TraceError, match="none of 320 drafts has a label"):
        evaluate(with_labels(made, slice(None), -1))


def test_one_request_can_be_scored_but_not_fitted():
    found = evaluate(one_run(num_steps=20, num_requests=1), replicates=20)
    assert "too few requests" in found.absent["logit q_max"]
    assert found.measurements["q_max"][EVERYTHING].auc.low is None
    assert {claim.verdict for claim in found.claims} == {"undecided"}


def test_drafters_of_different_depth_are_scored_together_and_apart():
    made = memory_trace(
        (run_info(run="a", drafter="one"), {"num_steps": 60}),
        (run_info(run="b", drafter="two", num_speculative_tokens=2), {"num_steps": 60, "seed": 1}),
    )
    found = evaluate(made, replicates=20)
    n = {drafter: found.measurements["q_max"][Part(drafter)].n for drafter in ("all drafters", "one", "two")}
    assert n["all drafters"] == n["one"] + n["two"] == len(made.labelled)
    assert [sharing.drafter for sharing in found.sharing] == ["all drafters", "one", "two"]
    assert Part("two", "all", "3") not in found.measurements["q_max"]
