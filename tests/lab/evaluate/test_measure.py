from __future__ import annotations

import numpy as np
import pytest
from tests.lab.evaluate.traces import memory_trace, one_run, with_drafts, with_labels
from tests.lab.synthetic import run_info

from adaverify.lab.evaluate import metrics
from adaverify.lab.evaluate.bootstrap import Resamples
from adaverify.lab.evaluate.measure import Measured, measure
from adaverify.lab.evaluate.parts import ALL_DRAFTERS, Layout, Part
from adaverify.lab.evaluate.sample import Sample
from adaverify.lab.evaluate.scores import Score


def measured(sample: Sample, values: np.ndarray, is_log_odds: bool = True, bins: int = 15) -> dict[Part, Measured]:
    score = Score("score", True, "as it is", values, is_log_odds)
    return measure(score, sample, Layout(sample), Resamples.draw(sample.num_blocks, 100), bins)


@pytest.fixture(scope="module")
def mixed() -> Sample:
    """Two drafters of different depth; every other request is greedy; scores with ties."""
    trace = memory_trace(
        (run_info(run="a", drafter="one"), {"num_steps": 100}),
        (run_info(run="b", drafter="two", num_speculative_tokens=2), {"num_steps": 150, "seed": 1}),
    )
    drafts = trace.drafts
    greedy = (drafts.request % 2 == 0).astype(np.float32)
    return Sample.of(with_drafts(trace, temperature=1 - greedy, logit_q_max=drafts.logit_q_max.round(1)))


def rows_of(sample: Sample, part: Part) -> np.ndarray:
    """The drafts of a part, found in another way than by cells."""
    labels = np.array([pair.label for pair in sample.pairs])[sample.pair]
    rows = np.ones(len(sample), bool) if part.drafter == ALL_DRAFTERS else labels == part.drafter
    if part.sampling != "all":
        rows &= (sample.drafts.temperature == 0) == (part.sampling == "greedy")
    if part.positions == "from 2":
        rows &= sample.drafts.position > 1
    elif part.positions != "all":
        rows &= sample.drafts.position == int(part.positions)
    return rows


def test_every_part_shows_the_metrics_of_its_drafts(mixed):
    values = mixed.drafts.logit_q_max.astype(np.float64)
    found = measured(mixed, values, bins=10)
    samplings, positions = ("all", "greedy", "sampled"), ("all", "from 2")
    wanted = {Part(d, s, p) for d in (ALL_DRAFTERS, "one", "two") for s in samplings for p in positions}
    depths = {ALL_DRAFTERS: 4, "one": 4, "two": 2}
    wanted |= {Part(d, s, str(p)) for d, K in depths.items() for s in ("all", "sampled") for p in range(1, K + 1)}
    assert set(found) == wanted
    for part, m in found.items():
        rows = rows_of(mixed, part)
        p, label = 1 / (1 + np.exp(-values[rows])), mixed.label[rows]
        assert m.n == rows.sum()
        assert m.auc.value == pytest.approx(metrics.auc(p, label), abs=1e-9)
        assert m.log_loss.value == pytest.approx(metrics.log_loss(p, label), abs=1e-9)
        assert m.ece.value == pytest.approx(metrics.ece(p, label, 10), abs=1e-9)
        assert (m.mean_prediction, m.observed) == pytest.approx((p.mean(), label.mean()))
        if not part.is_one_position:
            assert m.ece_of_calibrated == pytest.approx(metrics.ece_of_calibrated(p, 10))


def test_a_replicate_is_the_metric_of_its_resample(mixed):
    values = mixed.drafts.logit_q_max.astype(np.float64)
    weights = Resamples.draw(mixed.num_blocks, 100).weights
    found = measured(mixed, values)
    for part in (Part(ALL_DRAFTERS), Part("one", "sampled", "from 2")):
        rows = np.flatnonzero(rows_of(mixed, part))
        drawn = np.repeat(rows, weights[7][mixed.block[rows]].astype(int))
        p, label = 1 / (1 + np.exp(-values[drawn])), mixed.label[drawn]
        replicates = {name: values[7] for name, values in found[part].replicates.items()}
        assert replicates["auc"] == pytest.approx(metrics.auc(p, label), abs=1e-3)
        assert replicates["log_loss"] == pytest.approx(metrics.log_loss(p, label), abs=1e-5)
        assert replicates["ece"] == pytest.approx(metrics.ece(p, label), abs=1e-5)


def test_shuffled_labels_give_auc_a_half():
    trace = one_run(num_steps=1500)
    labelled = np.flatnonzero(trace.drafts.label >= 0)
    shuffled = with_labels(trace, labelled, np.random.default_rng(0).permutation(trace.drafts.label[labelled]))
    sample = Sample.of(shuffled)
    found = measured(sample, sample.drafts.logit_q_max.astype(np.float64))[Part("tiny-draft")].auc
    # the standard deviation of the AUC of shuffled labels, from that of the rank sum
    accepted = int(sample.label.sum())
    noise = np.sqrt((len(sample) + 1) / (12 * accepted * (len(sample) - accepted)))
    assert abs(found.value - 0.5) < 3 * noise
    assert found.low < 0.5 < found.high


def test_drafts_without_a_value_are_not_measured(mixed):
    values = mixed.drafts.logit_q_max.astype(np.float64)
    values[mixed.pair == 1] = np.nan
    found = measured(mixed, values)
    assert not any(part.drafter == "two" for part in found)
    assert found[Part(ALL_DRAFTERS)].n == found[Part("one")].n == (mixed.pair == 0).sum()


def test_a_position_without_labels_is_no_part():
    trace = one_run(num_steps=100)
    sample = Sample.of(with_labels(trace, trace.drafts.position >= 3, -1))
    parts = {part.positions for part in Layout(sample).parts}
    assert parts == {"all", "from 2", "1", "2"}


def test_labels_that_are_all_alike_have_no_auc_but_a_log_loss():
    trace = one_run(num_steps=100)
    sample = Sample.of(with_labels(trace, trace.drafts.label >= 0, 1))
    found = measured(sample, sample.drafts.prediction.astype(np.float64), is_log_odds=False)[Part("tiny-draft")]
    assert found.auc.value is None
    assert found.log_loss.value > 0
    assert found.to_dict()["auc"] == {"value": None, "low": None, "high": None}
