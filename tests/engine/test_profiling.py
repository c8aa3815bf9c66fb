from __future__ import annotations

import pytest
import torch
from tests.drafters.support import trained
from tests.support import plain_llm

from adaverify.engine import profiling
from adaverify.engine.profiling import profile_costs


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_kv_blocks": 2, "max_model_len": 8},
        {"num_kv_blocks": 1, "block_size": 16, "max_model_len": 16},
        {"max_model_len": 2, "max_num_seqs": 1, "max_num_batched_tokens": 1},
    ],
    ids=["roomy", "two blocks", "one block", "one seat"],
)
def test_any_pool_can_be_profiled_and_gets_its_blocks_back(pair, options):
    llm = pair.llm(**options)
    costs = profile_costs(llm.engine, show_progress=False)
    seats = llm.config.max_num_seqs
    assert (costs.draft.sizes[0], costs.draft.sizes[-1]) == (1, seats)
    assert (costs.verify.sizes[0], costs.verify.sizes[-1]) == (
        1,
        min(llm.config.max_num_batched_tokens, seats * (1 + llm.engine.speculation.num_speculative_tokens)),
    )
    assert costs.draft_first.sizes == costs.draft.sizes
    assert llm.engine.pool.num_free == llm.engine.pool.capacity


def test_the_first_draft_is_priced_apart_where_there_are_others(pair, tmp_path):
    small = {"max_num_seqs": 2, "max_model_len": 32}
    assert profile_costs(pair.llm(k=1, **small).engine, show_progress=False).draft_first is None
    parallel = trained(tmp_path, pair.target, "dflash")
    assert profile_costs(parallel.llm(k=3, **small).engine, show_progress=False).draft_first is not None


def test_without_speculation_there_is_nothing_to_draft(pair):
    assert profile_costs(plain_llm(pair.target).engine, show_progress=False).draft is None


@pytest.mark.parametrize("vocab_size", [32_000, 49_152, 151_936])
def test_a_made_up_law_has_nuclei_like_those_of_text(vocab_size):
    law = profiling._zipf_logits(vocab_size).softmax(dim=-1)
    nucleus = int((law.sort(descending=True).values.cumsum(dim=-1) < profiling.TOP_P).sum()) + 1
    assert 25 <= nucleus <= 60
    assert law.argsort(descending=True)[:3].tolist() != [0, 1, 2]


def test_rounds_are_sampled_from_made_up_laws(pair, monkeypatch):
    seen = []
    monkeypatch.setattr(profiling, "sample", lambda logits, *rest: seen.append(logits.clone()))
    llm = pair.llm()
    profile_costs(llm.engine, show_progress=False)
    law = profiling._zipf_logits(llm.engine.runner.vocab_size)
    assert len(seen) > 10
    assert all(torch.equal(logits, law.to(logits.dtype).expand_as(logits)) for logits in seen)


def test_small_rounds_are_timed_twice_as_often():
    calls, advances = dict.fromkeys((1, 48, 64), 0), []

    def count(size):
        calls[size] += 1

    engine = type("Idle", (), {"runner": type("Runner", (), {"device": torch.device("cpu")})})
    timed = profiling._time(
        {size: (lambda size=size: count(size)) for size in calls}, engine, lambda: advances.append(1)
    )
    assert calls == {1: 1 + profiling.PASSES, 48: 1 + profiling.PASSES, 64: 1 + profiling.PASSES // 2}
    assert len(advances) == 3 * (1 + profiling.PASSES)
    kept = [size for size, _ in timed]
    assert (kept.count(1), kept.count(64)) == (profiling.PASSES // 2, (profiling.PASSES // 2 + 1) // 2)
