from __future__ import annotations

import numpy as np
import pytest
from tests.lab.evaluate.traces import memory_trace, one_run, with_drafts
from tests.lab.synthetic import run_info

from adaverify.errors import TraceError
from adaverify.lab.evaluate.sample import Sample, one_of_each, pairs_of, select


def test_a_request_lies_in_one_block_and_blocks_are_even():
    sample = Sample.of(one_run(num_steps=1000, steps_per_request=10))
    assert (sample.num_requests, sample.num_blocks) == (800, 200)
    request = sample.drafts.request
    assert all(len(np.unique(sample.block[request == r])) == 1 for r in range(0, 800, 50))
    first_rows = np.unique(request, return_index=True)[1]
    assert np.bincount(sample.block[first_rows]).tolist() == [4] * 200


def test_requests_of_two_runs_are_not_mixed_up():
    law = {"num_steps": 20, "num_requests": 3, "steps_per_request": 20}
    trace = memory_trace((run_info(run="a"), law), (run_info(run="b"), law))
    sample = Sample.of(trace)
    assert (sample.num_requests, len(np.unique(sample.block))) == (6, 6)


def test_unlabelled_untelling_and_not_finite_drafts_are_left_out():
    trace = one_run(num_steps=10)
    labelled = np.flatnonzero(trace.drafts.label >= 0)
    f, telling = trace.drafts.logit_q_max.copy(), trace.drafts.telling.copy()
    f[labelled[0]], telling[labelled[1]] = np.nan, False
    sample = Sample.of(with_drafts(trace, logit_q_max=f, telling=telling))
    assert len(sample) == len(labelled) - 2
    assert sample.num_left_out == 1


def test_without_labels_there_is_nothing_to_score():
    trace = one_run(num_steps=10)
    with pytest.raises(TraceError, match=r"none of 320 drafts has a label.*--no-trim"):
        Sample.of(with_drafts(trace, label=np.full(len(trace.drafts), -1)))


def test_runs_of_one_drafter_make_a_pair_and_ways_of_verifying_do_not_mix():
    runs = [
        run_info(run="a", drafter="one", num_speculative_tokens=3),
        run_info(run="b", drafter="two"),
        run_info(run="c", drafter="one", num_speculative_tokens=5),
        run_info(run="d", drafter="one", rejection_sample_method="coupled"),
    ]
    pairs = pairs_of(runs)
    assert [pair.label for pair in pairs] == ["one (standard)", "two", "one (coupled)"]
    assert [pair.runs for pair in pairs] == [(0, 2), (1,), (3,)]
    assert [pair.num_speculative_tokens for pair in pairs] == [5, 4, 4]


def test_of_pairs_of_the_same_models_one_stands_for_all():
    runs = [
        run_info(run="a", drafter="one", rejection_sample_method="coupled"),
        run_info(run="b", drafter="one", trimmed=True),
        run_info(run="c", drafter="one"),
        run_info(run="d", drafter="two", rejection_sample_method="coupled"),
        run_info(run="e", drafter="one", target="other"),
    ]
    pairs = pairs_of(runs)
    assert [pairs.index(pair) for pair in pairs if pair.label in one_of_each(pairs)] == [2, 3, 4]
    assert [pair.coupled for pair in pairs] == [True, False, False, True, False]
    assert [pair.trimmed for pair in pairs] == [False, True, False, False, False]


def test_select_keeps_what_was_asked_for():
    trace = memory_trace((run_info(run="a", drafter="one"), {}), (run_info(run="b", drafter="two"), {"seed": 1}))
    part = select(trace, ["chat"], ["two"])
    assert [run.drafter for run in part.runs] == ["two"]
    assert len(part.drafts) == len(trace.drafts) // 4
    assert set(part.drafts.dataset) == {trace.datasets.index("chat")}
    assert select(trace) is trace


def test_a_name_that_was_not_recorded_is_refused_with_those_that_were():
    trace = one_run(num_steps=10)
    with pytest.raises(TraceError, match="no dataset 'poems' was recorded; there are maths, chat"):
        select(trace, ["poems"])
    with pytest.raises(TraceError, match="no drafter 'other' was recorded; there are tiny-draft"):
        select(trace, [], ["other"])
