from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adaverify.errors import ConfigError, TraceError
from adaverify.lab.replay import Rounds, by_drafter
from lab import synthetic
from lab.replay.small import Block, rounds_of, trace_of


def test_rounds_follow_request_and_step_whatever_the_order_of_the_rows() -> None:
    rounds = rounds_of(
        Block("+-.", request=5, step=0, q_max=(0.9, 0.8, 0.7)),
        Block("++", request=7, step=0, q_max=(0.6, 0.5)),
        Block("-..", request=5, step=1, q_max=(0.4, 0.3, 0.2)),
    )
    assert rounds.blocks.request.tolist() == [0, 0, 1]
    assert rounds.first.tolist() == [0, 2]
    assert rounds.lengths.tolist() == [2, 1]
    assert rounds.blocks.num_drafts.tolist() == [3, 3, 2]
    assert rounds.num_accepted.tolist() == [1, 0, 2]
    np.testing.assert_allclose(
        rounds.blocks.q_max, np.array([[0.9, 0.8, 0.7], [0.4, 0.3, 0.2], [0.6, 0.5, np.nan]], np.float32)
    )


def test_requests_of_two_runs_are_told_apart() -> None:
    runs = tuple(synthetic.run_info(run=name, num_speculative_tokens=1) for name in "ab")
    rounds = rounds_of(Block("+", request=0, run=0), Block("-", request=0, run=1), runs=runs)
    assert rounds.blocks.request.tolist() == [0, 1]
    assert rounds.blocks.run.tolist() == [0, 1]


def test_no_more_is_verified_than_has_a_known_outcome() -> None:
    rounds = rounds_of(
        Block("+-..", request=0),
        Block("++..", request=1, admitted=2),
        Block("+-..", request=2, admitted=3),
        Block("++++", request=3),
        Block("....", request=4, admitted=0),
        Block("++..", request=5, admitted=3),
    )
    assert rounds.num_verified.tolist() == [4, 2, 3, 4, 0, 2]
    assert rounds.num_accepted.tolist() == [1, 2, 1, 4, 0, 2]


def test_a_trimmed_run_is_refused_by_name() -> None:
    runs = (synthetic.run_info(run="whole"), synthetic.run_info(run="cut", trimmed=True))
    with pytest.raises(TraceError, match=r"run cut trimmed.*--no-trim"):
        Rounds.of(trace_of(Block("+-.."), runs=runs))


def test_a_missing_draft_is_refused_with_its_place() -> None:
    trace = trace_of(Block("++-", request=3, step=8), Block("+-.", request=4, step=8))
    lost = np.arange(len(trace.drafts)) != 4
    with pytest.raises(TraceError, match="step 8, request 4: position 3 does not follow"):
        Rounds.of(replace(trace, drafts=trace.drafts.select(lost)))


def test_a_block_deeper_than_its_run_drafts_is_refused() -> None:
    with pytest.raises(TraceError, match="request 0: position 3 does not follow"):
        rounds_of(Block("++-"), num_speculative_tokens=2)


@pytest.mark.parametrize("rows", [[1, 2], [1, 0]])
def test_a_trace_that_begins_inside_a_block_is_refused(rows: list[int]) -> None:
    trace = trace_of(Block("++-", request=3, step=8))
    with pytest.raises(TraceError, match="position 2 does not follow"):
        Rounds.of(replace(trace, drafts=trace.drafts.select(rows)))


def test_a_trace_without_verified_drafts_is_refused() -> None:
    with pytest.raises(TraceError, match="no draft was verified"):
        rounds_of(Block("...", admitted=0))


def test_several_drafters_are_parted_and_never_pooled() -> None:
    runs = tuple(
        synthetic.run_info(run=run, drafter=drafter, num_speculative_tokens=2)
        for run, drafter in (("a", "small"), ("b", "large"), ("c", "small"))
    )
    trace = trace_of(Block("++", run=0), Block("-.", run=1), Block("+-", run=2), runs=runs)
    with pytest.raises(ConfigError, match="several drafters"):
        Rounds.of(trace)
    small, large = (Rounds.of(part) for part in by_drafter(trace))
    assert [run.run for run in small.runs] == ["a", "c"]
    assert small.num_accepted.tolist() == [2, 1]
    assert large.num_accepted.tolist() == [0]


def test_requests_of_some_datasets() -> None:
    rounds = rounds_of(
        Block("+", request=0, dataset=0), Block("-", request=1, dataset=1), Block("+", request=2, dataset=1)
    )
    chat = rounds.of_datasets(["chat"])
    assert chat.num_accepted.tolist() == [0, 1]
    assert chat.blocks.request.tolist() == [0, 1]
    assert chat.recorded_datasets == ["chat"]
    with pytest.raises(ConfigError, match="dataset law was not recorded; choose from maths, chat"):
        rounds.of_datasets(["law"])


def test_a_feature_counts_as_recorded_where_a_draft_could_be_verified() -> None:
    whole = rounds_of(Block("+-", overlap=(0.9, 0.2)), Block("..", request=1, admitted=0))
    assert whole.share_recorded("overlap") == 1
    half = rounds_of(Block("+-", overlap=(0.9, 0.2)), Block("+-", request=1))
    assert half.share_recorded("overlap") == 0.5
    assert half.share_recorded("head_logit") == 0
