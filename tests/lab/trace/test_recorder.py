from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import pytest
import torch
from tests.support import plain_llm, random_prompts, token_ids

from adaverify import LLM, SamplingParams
from adaverify.errors import ConfigError, TraceError
from adaverify.lab.trace import Trace, TraceWriter, read_trace
from adaverify.lab.trace.recorder import Recorder
from adaverify.lab.trace.schema import ACCEPTED, UNOBSERVED
from adaverify.policy.estimator import OnlineAcceptanceEstimator

K = 3
PARAMS = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=20, ignore_eos=True, seed=3)


def record(llm: LLM, folder, params: SamplingParams | list[SamplingParams] = PARAMS, **options) -> Trace:
    recorder = Recorder(llm.engine, folder, **options)
    llm.generate(random_prompts(10, 46), params)
    recorder.close()
    return read_trace([folder])


@pytest.fixture(scope="module")
def trimmed(pair, tmp_path_factory):
    llm = pair.llm(k=K, max_num_seqs=4, speculative={"estimator": "paper"})
    before = llm.stats()
    trace = record(llm, tmp_path_factory.mktemp("trimmed"), wants_overlaps=True)
    return trace, before, llm.stats()


def test_the_trace_counts_what_the_engine_counts(trimmed):
    trace, before, after = trimmed
    drafts = trace.drafts
    for i in range(K):
        here = drafts.position == i + 1
        assert here.sum() == after.drafted[i] - before.drafted[i]
        assert drafts.admitted[here].sum() == after.admitted[i] - before.admitted[i]
        assert drafts.accepted[here].sum() == after.accepted[i] - before.accepted[i]
        assert (drafts.label[here] >= 0).sum() == after.observed[i] - before.observed[i]
    assert 0 < drafts.admitted.sum() < len(drafts)
    assert trace.runs[0].trimmed
    steps = trace.steps
    assert steps.num_accepted.sum() == drafts.accepted.sum()
    assert (steps.num_packed_tokens == steps.num_non_draft_tokens + steps.num_admitted).all()
    assert (steps.step_ms >= steps.draft_ms + steps.verify_ms - 1e-3).all()


def test_what_was_predicted_can_be_computed_from_the_trace(trimmed):
    trace = trimmed[0]
    estimator = OnlineAcceptanceEstimator(K)
    drafts = trace.drafts
    compared = 0
    for step in range(int(drafts.step.max()) + 1):
        now = drafts.select(drafts.step == step)
        if len(now):
            rows = {request: row for row, request in enumerate(dict.fromkeys(now.request.tolist()))}
            row = [rows[request] for request in now.request.tolist()]
            features, labels = np.full((len(rows), K), np.nan, np.float32), np.full((len(rows), K), -1)
            admitted = np.zeros(len(rows), int)
            features[row, now.position - 1], labels[row, now.position - 1] = now.logit_q_max, now.label
            np.add.at(admitted, row, now.admitted)
            predicted = estimator.predict(torch.from_numpy(features))
            np.testing.assert_allclose(predicted.numpy()[row, now.position - 1], now.prediction, rtol=1e-6)
            compared += len(now)
            accepted = torch.from_numpy((labels == 1).sum(axis=1))
            estimator.observe(torch.from_numpy(features), predicted, torch.from_numpy(admitted), accepted)
        estimator.end_step()
    assert compared == len(drafts)


def test_features_belong_together(trimmed):
    drafts = trimmed[0].drafts
    np.testing.assert_allclose(drafts.q_max, 1 / (1 + np.exp(-drafts.logit_q_max)), rtol=1e-5)
    assert (drafts.q_sampled <= drafts.q_max * (1 + 1e-5)).all()
    assert (drafts.q_sampled > 0).all()
    assert (drafts.q_sampled < drafts.q_max - 1e-3).any()
    assert ((drafts.entropy >= 0) & (drafts.entropy <= np.log(48))).all()
    first = drafts.position == 1
    assert np.isnan(drafts.q_sampled_before[first]).all()
    np.testing.assert_array_equal(drafts.q_sampled_before[~first], drafts.q_sampled[:-1][~first[1:]])
    assert np.isnan(drafts.head_logit).all()


def test_overlaps_are_the_chance_of_acceptance(pair, tmp_path):
    params = [dataclasses.replace(PARAMS, seed=seed) for seed in range(10)]
    llm = pair.llm(costs=None, k=K, max_num_seqs=10)
    recorder = Recorder(llm.engine, tmp_path, wants_overlaps=True)
    for start in range(0, 60, 10):
        llm.generate(
            random_prompts(10, 46, seed=start),
            [dataclasses.replace(p, seed=start + i, max_tokens=60) for i, p in enumerate(params)],
        )
    recorder.close()
    labelled = read_trace([tmp_path]).labelled
    assert ((labelled.overlap >= 0) & (labelled.overlap <= 1)).all()
    # labels are coin flips with these chances
    spread = np.sqrt((labelled.overlap * (1 - labelled.overlap).clip(0)).sum())
    assert abs(labelled.accepted.sum() - labelled.overlap.sum()) < 4 * spread
    assert labelled.overlap.std() > 0.1


def test_recording_changes_no_token(pair, tmp_path):
    llm = pair.llm(k=K)
    expected = token_ids(llm.generate(random_prompts(6, 46), PARAMS))
    llm = pair.llm(k=K)
    recorder = Recorder(llm.engine, tmp_path, wants_overlaps=True)
    assert token_ids(llm.generate(random_prompts(6, 46), PARAMS)) == expected
    recorder.close()
    assert not llm.engine.speculation.drafter.keeps_details


def test_labels_that_say_nothing_about_others_are_marked(pair, tmp_path):
    params = [
        PARAMS,
        dataclasses.replace(PARAMS, presence_penalty=0.5),
        dataclasses.replace(PARAMS, temperature=0.0),
    ]
    llm = pair.llm(costs=None, k=K)
    recorder = Recorder(llm.engine, tmp_path, wants_overlaps=True)
    for number, one in enumerate(params):
        llm.engine.add_request([1, 2, 3], one, str(number), dataset=f"set {number}")
    while llm.engine.has_unfinished:
        llm.engine.step()
    recorder.close()
    trace = read_trace([tmp_path])
    drafts = trace.drafts
    names = np.array(trace.datasets)[drafts.dataset]
    assert set(names) == {"set 0", "set 1", "set 2"}
    assert (drafts.telling == (names != "set 1")).all()
    assert (drafts.is_greedy == (names == "set 2")).all()
    assert not drafts.is_labelled[names == "set 1"].any()
    verified = drafts.admitted & (names == "set 0")
    assert np.isfinite(drafts.overlap[verified]).all()
    assert np.isnan(drafts.overlap[names != "set 0"]).all()
    assert not trace.runs[0].trimmed


def test_a_full_disk_ends_the_recording_and_not_the_serving(pair, tmp_path, monkeypatch, caplog):
    llm = pair.llm(k=K)
    recorder = Recorder(llm.engine, tmp_path)

    def full(self, kind, columns):
        raise TraceError(f"{tmp_path}: recording failed (no space left)")

    monkeypatch.setattr(TraceWriter, "add", full)
    outputs = llm.generate(random_prompts(3, 46), PARAMS)
    assert all(len(output.outputs[0].token_ids) == 20 for output in outputs)
    assert llm.engine.observer is None
    assert caplog.text.count("no space left") == 1
    recorder.close()


def test_nothing_to_record_without_a_drafter(pair, tmp_path):
    with pytest.raises(ConfigError, match="needs a drafter"):
        Recorder(plain_llm(pair.target).engine, tmp_path)


def test_drafts_behind_the_end_of_a_text_are_no_labels(pair, tmp_path):
    """The draft that ends it is one; and the estimator learns from as many as the trace holds."""
    greedy = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    texts = token_ids(pair.llm(costs=None, k=K).generate(random_prompts(10, 46), greedy))
    ending = dataclasses.replace(greedy, stop_token_ids=sorted({text[4] for text in texts}))
    told_apart = {}
    for name, params in {"whole": greedy, "ended": ending}.items():
        llm = pair.llm(costs=None, k=K)
        learned = []
        estimator = llm.engine.speculation.estimator
        observe = estimator.observe

        def count(inputs, predictions, admitted, accepted, *, learned=learned, observe=observe, **more):
            learned.append(int(torch.minimum(admitted, accepted + 1).sum()))
            observe(inputs, predictions, admitted, accepted, **more)

        with mock.patch.object(estimator, "observe", count):
            drafts = record(llm, tmp_path / name, params).drafts
        follows_accepted = (drafts.position > 1) & (np.roll(drafts.label, 1) == ACCEPTED)
        told_apart[name] = int((follows_accepted & drafts.admitted & (drafts.label == UNOBSERVED)).sum())
        assert sum(learned) == (drafts.label != UNOBSERVED).sum()
    assert told_apart["whole"] == 0
    assert told_apart["ended"] > 0
