from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adaverify.errors import ConfigError
from adaverify.lab.replay import Prices, read_costs, recorded_costs
from adaverify.policy.cost import CostCurve, CostTable
from lab import synthetic
from lab.replay.small import Block, rounds_of

COSTS = CostTable(verify=CostCurve((1, 8), (10.0, 24.0)), draft=CostCurve((1, 2), (4.0, 6.0)))


def prices(parallel: bool) -> Prices:
    return Prices.of(COSTS, rounds_of(Block("++-."), drafts_in_parallel=parallel), num_seats=2)


def test_an_autoregressive_drafter_costs_by_pass_and_by_the_requests_still_drafting() -> None:
    # K = 4 passes: 1 ms each for one request, 1.5 ms for two
    depth = np.array([[4, 4], [2, 2], [3, 1], [0, 0], [0, 1]])
    np.testing.assert_allclose(prices(parallel=False).draft_ms(depth), [6.0, 3.0, 3.5, 0.0, 1.0])


def test_where_the_first_draft_was_measured_apart_the_passes_behind_it_share_the_rest() -> None:
    costs = replace(COSTS, draft_first=CostCurve((1, 2), (1.0, 3.0)))
    depth = np.array([[4, 4], [2, 2], [3, 1], [0, 0], [0, 1]])
    rounds = rounds_of(Block("++-."), drafts_in_parallel=False)
    np.testing.assert_allclose(Prices.of(costs, rounds, 2).draft_ms(depth), [6.0, 4.0, 5.0, 0.0, 1.0])


def test_a_parallel_drafter_costs_the_same_at_any_depth_but_none() -> None:
    depth = np.array([[4, 4], [2, 2], [3, 1], [0, 0], [0, 1]])
    np.testing.assert_allclose(prices(parallel=True).draft_ms(depth), [6.0, 6.0, 6.0, 0.0, 4.0])


def test_verification_costs_by_packed_tokens() -> None:
    np.testing.assert_allclose(prices(parallel=True).verify_ms(np.array([1, 2, 8, 10])), [10.0, 12.0, 24.0, 28.0])


def test_the_table_of_profile_is_read_and_anything_else_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(COSTS.to_dict(), indent=2))
    assert read_costs(file) == COSTS
    for text in ("{", '{"draft": null}', '{"verify": {"sizes": [1], "costs": [-1.0]}}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"costs\.json.*adaverify profile"):
            read_costs(file)
    with pytest.raises(ConfigError, match=r"none\.json.*adaverify profile"):
        read_costs(tmp_path / "none.json")


def test_without_a_recorded_table_one_is_asked_for() -> None:
    runs = tuple(synthetic.run_info(run=run, costs=costs) for run, costs in (("a", None), ("b", COSTS.to_dict())))
    assert recorded_costs(rounds_of(Block("++-."), runs=runs)) == (COSTS, "b")
    with pytest.raises(ConfigError, match=r"run a holds no cost table.*--costs FILE"):
        recorded_costs(rounds_of(Block("++-."), runs=runs[:1]))
