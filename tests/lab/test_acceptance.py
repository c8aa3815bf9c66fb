from __future__ import annotations

import pytest
from tests.support import random_prompts

from adaverify import SamplingParams
from adaverify.engine.stats import EngineStats
from adaverify.errors import RequestFailedError
from adaverify.lab.acceptance import Acceptance, measure_acceptance


def test_shares_by_position():
    before = EngineStats(num_draft_rounds=3, drafted=[3, 3, 3], admitted=[3, 3, 3], accepted=[2, 1, 0],
                         observed=[3, 2, 1], generation_tokens=7)  # fmt: skip
    after = EngineStats(num_draft_rounds=13, drafted=[13, 12, 11], admitted=[13, 9, 3], accepted=[10, 3, 0],
                        observed=[13, 7, 1], generation_tokens=31)  # fmt: skip
    measured = Acceptance.between(before, after, 2.0)
    assert measured.given_reached == [0.8, 0.4, None]
    assert measured.per_round == [0.8, 0.2, 0.0]
    assert [measured.mean(name) for name in ("drafted", "admitted", "accepted")] == [2.7, 1.6, 1.0]
    assert measured.tokens_per_second == 12.0
    assert measured.to_dict()["reached"] == [10, 5, 0]


def test_a_run_without_rounds_has_no_shares():
    stats = EngineStats(drafted=[0], admitted=[0], accepted=[0], observed=[0])
    measured = Acceptance.between(stats, stats, 1.0)
    assert (measured.given_reached, measured.per_round, measured.mean("accepted")) == ([None], [None], 0.0)


def test_only_the_run_itself_is_counted(pair):
    llm = pair.llm(costs=None, k=3)
    prompts = random_prompts(6, 46)
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=0)
    measure_acceptance(llm, prompts, params)
    measured = measure_acceptance(llm, prompts, params)
    assert measured.tokens == 6 * 20
    assert measured.admitted == measured.drafted
    # every draft is verified: a position is reached when the one before it was accepted and it was drafted
    assert measured.reached[0] == measured.rounds
    assert all(reached <= accepted for reached, accepted in zip(measured.reached[1:], measured.accepted, strict=False))
    assert 0 < sum(measured.accepted) < sum(measured.drafted)


def test_a_failed_completion_is_no_measurement(pair, monkeypatch):
    llm = pair.llm(costs=None)
    outputs = llm.generate([[1, 2]], SamplingParams(max_tokens=2))
    outputs[0].outputs[0].error = "not finite"
    monkeypatch.setattr(llm, "generate", lambda prompts, params: outputs)
    with pytest.raises(RequestFailedError, match="not finite"):
        measure_acceptance(llm, [[1, 2]], SamplingParams(max_tokens=2))
