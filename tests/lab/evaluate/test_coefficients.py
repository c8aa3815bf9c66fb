from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from tests.lab.evaluate.traces import half_greedy, memory_trace, one_run, with_drafts, with_labels, workloads
from tests.lab.synthetic import run_info

from adaverify.lab.evaluate.bootstrap import Resamples
from adaverify.lab.evaluate.coefficients import Coefficients, correlate
from adaverify.lab.evaluate.fit import RIDGE, LawFitter
from adaverify.lab.evaluate.groups import bootstrap_law
from adaverify.lab.evaluate.parts import ALL_DRAFTERS
from adaverify.lab.evaluate.refits import refit_paths
from adaverify.lab.evaluate.sample import Sample
from adaverify.lab.evaluate.workload_claims import claims_on_pairs


def coefficients(trace, replicates: int = 300) -> Coefficients:
    sample = Sample.of(trace)
    return Coefficients(sample, Resamples.draw(sample.num_blocks, replicates))


@pytest.fixture(scope="module")
def four_workloads() -> Coefficients:
    """Four datasets that differ in level, with entropy the higher the lower acceptance is."""
    levels = {"a": 0.8, "b": 0.3, "c": -0.2, "d": -0.7}
    trace = memory_trace(*workloads("one", 0.6, levels, seed=0, num_steps=500))
    level = np.array(list(levels.values()))[trace.drafts.dataset]
    return coefficients(with_drafts(trace, entropy=(1.0 - level).astype(np.float32)))


def test_a_known_law_lies_in_its_intervals(four_workloads):
    for group, level in zip(four_workloads.by_dataset, (0.8, 0.3, -0.2, -0.7), strict=True):
        slope = group.estimate("slope")
        assert slope.low - 0.01 < 0.6 < slope.high + 0.01
        assert slope.high - slope.low < 0.12
        for known, intercept in zip((0.3, 0.1, -0.1, -0.3), group.intercepts, strict=True):
            assert intercept.low - 0.05 < level + known < intercept.high + 0.05
        assert group.estimate("entropy").value == pytest.approx(1.0 - level, abs=1e-5)


def test_what_describes_a_group_is_taken_at_position_1():
    trace = one_run(num_steps=300, datasets=("maths",))
    first = trace.drafts.select(trace.drafts.position == 1)
    group = coefficients(trace).by_drafter[0]
    assert group.estimate("acceptance").value == pytest.approx(first.accepted.mean())
    assert group.estimate("entropy").value == pytest.approx(first.entropy.mean(), abs=1e-5)
    gap = first.accepted.mean() - first.q_max.mean()
    assert group.estimate("confidence_gap").value == pytest.approx(gap, abs=1e-5)
    assert group.labels_by_position == tuple(np.bincount(trace.labelled.position)[1:])


def test_the_intercept_follows_what_it_is_said_to_follow(four_workloads):
    falls = four_workloads.correlation("one", "first_intercept", "entropy")
    assert falls.estimate.high < -0.9
    rises = four_workloads.correlation("one", "intercept_of_half", "gap_of_other_half")
    assert rises.estimate.low > 0.9
    # of the 24 ways to pair four with four, one correlates as much
    assert (falls.luck_below, rises.luck_above) == (1 / 24, 1 / 24)
    steady = four_workloads.correlation("one", "slope", "entropy").estimate
    assert steady.low < 0.5
    assert steady.high - steady.low > 0.5


def test_correlation_is_pearsons(four_workloads):
    groups = four_workloads.by_dataset
    slopes, aucs = ([group.quantities[name].value for group in groups] for name in ("slope", "auc"))
    assert correlate(groups, "slope", "auc").value == pytest.approx(np.corrcoef(slopes, aucs)[0, 1])
    assert correlate(groups[:2], "slope", "auc").value is None


def test_a_replicate_is_a_fit_to_its_resample():
    sample = Sample.of(one_run(num_steps=600))
    feature, depth = sample.drafts.logit_q_max.astype(np.float64), sample.depth
    resamples = Resamples.draw(sample.num_blocks, 3)
    law = LawFitter(4).fit(feature, depth, sample.label)
    slopes, intercepts = bootstrap_law(law, feature, depth, sample.label, sample.block, sample.num_blocks, resamples)
    design = np.concatenate([feature[:, None], np.eye(4)[depth]], axis=1)
    for i, weights in enumerate(resamples.weights):
        model = LogisticRegression(C=1 / RIDGE, fit_intercept=False, solver="newton-cholesky")
        refitted = model.fit(design, sample.label, sample_weight=weights[sample.block]).coef_[0]
        moved = np.abs(refitted - [law.slopes[0], *law.intercepts]).max()
        np.testing.assert_allclose([slopes[i], *intercepts[i]], refitted, atol=0.1 * moved + 1e-4)


def test_a_resample_that_is_the_sample_itself_leaves_the_fit_alone():
    sample = Sample.of(one_run(num_steps=200))
    feature, depth = sample.drafts.logit_q_max.astype(np.float64), sample.depth
    everything = Resamples(np.ones((1, sample.num_blocks), np.float32))
    law = LawFitter(4).fit(feature, depth, sample.label)
    slopes, intercepts = bootstrap_law(law, feature, depth, sample.label, sample.block, sample.num_blocks, everything)
    assert slopes[0] == pytest.approx(law.slopes[0], abs=1e-4)
    np.testing.assert_allclose(intercepts[0], law.intercepts, atol=1e-4)


def test_a_position_with_few_labels_has_no_intercept_and_one_class_no_law():
    trace = one_run(num_steps=100)
    deep = np.flatnonzero((trace.drafts.position == 4) & (trace.drafts.label >= 0))
    group = coefficients(with_labels(trace, deep[29:], -1), 20).by_drafter[0]
    assert [intercept.value is None for intercept in group.intercepts] == [False, False, False, True]
    assert coefficients(with_labels(trace, trace.drafts.label >= 0, 1), 20).by_drafter == []


def test_greedy_and_sampled_requests_are_fitted_apart():
    trace = one_run(num_steps=600, datasets=("maths",))
    assert coefficients(trace, 20).by_sampling == []
    greedy = trace.drafts.request % 2 == 0
    mixed = with_drafts(trace, temperature=np.where(greedy, 0, 1).astype(np.float32))
    # greedy requests reject every fourth of what was accepted
    rejected = (greedy & (trace.drafts.label == 1)).nonzero()[0][::4]
    fitted = coefficients(with_labels(mixed, rejected, 0), 20).by_sampling
    assert [group.sampling for group in fitted] == ["greedy", "sampled"]
    assert fitted[0].quantities["first_intercept"].value < fitted[1].quantities["first_intercept"].value - 0.5


def test_datasets_are_fitted_to_sampled_requests_where_there_are_greedy_ones_too():
    mixed = half_greedy(one_run(num_steps=600, datasets=("maths",)))
    fitted = coefficients(mixed, 20)
    sampled = mixed.labelled.temperature > 0
    (group,) = fitted.by_dataset
    assert (group.sampling, group.n, fitted.by_drafter[0].n) == ("sampled", sampled.sum(), sampled.sum())
    assert fitted.sampling == {"tiny-draft": "sampled"}
    assert coefficients(one_run(num_steps=50), 20).sampling == {"tiny-draft": "all"}


def test_intercept_and_gap_of_halves_are_of_different_requests():
    trace = one_run(num_steps=400, datasets=("maths",))
    before = coefficients(trace, 20).by_drafter[0].quantities
    sample = Sample.of(trace)
    labelled = np.flatnonzero(trace.drafts.label >= 0)
    changed = labelled[(sample.block % 2 == 1) & (sample.depth == 0)]
    after = coefficients(with_labels(trace, changed, 0), 20).by_drafter[0].quantities
    assert after["intercept_of_half"].value == before["intercept_of_half"].value
    assert after["gap_of_other_half"].value < before["gap_of_other_half"].value
    assert after["first_intercept"].value < before["first_intercept"].value


def test_few_requests_have_no_halves():
    group = coefficients(one_run(num_steps=20, num_requests=19, datasets=("maths",)), 20).by_drafter[0]
    assert group.estimate("first_intercept").low is not None
    assert group.estimate("intercept_of_half").value is None
    assert group.estimate("gap_of_other_half").value is None


def test_one_drafter_under_two_ways_of_verifying_is_not_two():
    levels = {"a": 0.5, "b": -0.5}
    runs = [*workloads("one", 0.4, levels, 0, num_steps=100), *workloads("one", 0.9, levels, 9, num_steps=100)]
    runs[2:] = [
        (info.model_copy(update={"run": f"c{i}", "rejection_sample_method": "coupled"}), law)
        for i, (info, law) in enumerate(runs[2:])
    ]
    fitted = coefficients(memory_trace(*runs), 20)
    assert fitted.drafters == ["one (standard)", "one (coupled)"]
    assert fitted.distinct == ["one (standard)"]
    assert not list(claims_on_pairs(fitted))
    assert {correlation.drafter for correlation in fitted.correlations} == set(fitted.drafters)


def test_correlations_over_all_drafters_take_every_group():
    levels = {"a": 0.5, "b": -0.5}
    trace = memory_trace(
        *workloads("one", 0.4, levels, seed=0, num_steps=150), *workloads("two", 0.9, levels, seed=9, num_steps=150)
    )
    fitted = coefficients(trace, 50)
    over_all = fitted.correlation(ALL_DRAFTERS, "slope", "auc")
    assert (over_all.num_groups, len(fitted.by_drafter)) == (4, 2)
    assert over_all.estimate.low > 0.5
    assert fitted.correlation("one", "slope", "auc").estimate.value is None


def test_recorded_coefficients_are_given_refit_by_refit():
    trace = memory_trace((run_info(run="a"), {"num_steps": 350}), (run_info(run="b"), {"num_steps": 50}))
    steps = trace.steps
    steps.slope[:] = 0.5 + steps.num_refits
    (path,) = refit_paths(trace)
    assert (path.run, path.num_refits) == ("a", 3)
    assert path.step.tolist() == [0, 100, 200, 300]
    assert path.slope.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert path.intercepts.shape == (4, 4)


def test_a_long_path_is_thinned_to_its_ends():
    trace = one_run(num_steps=1000)
    trace.steps.num_refits[:] = trace.steps.step
    (path,) = refit_paths(trace)
    assert len(path.step) == 200
    assert (path.step[0], path.step[-1], path.num_refits) == (0, 999, 999)
