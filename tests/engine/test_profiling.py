from __future__ import annotations

import pytest
from tests.drafters.support import trained
from tests.support import plain_llm

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
