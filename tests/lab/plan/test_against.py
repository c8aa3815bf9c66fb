from __future__ import annotations

import json
from pathlib import Path

import pytest

from adaverify.errors import ConfigError
from adaverify.lab.plan import AV, Lengths, Measured, check, read_measured
from lab.plan.made_up import bench_file, plan_of

RATES = {
    "k0": {"1": 100.0, "8": 500.0},
    "k2": {"1": 150.0, "8": 505.0},
    "av": {"1": 160.0, "8": 550.0, "2.5/s": 80.0},
}


def test_closed_loads_of_our_arms_are_read(tmp_path: Path) -> None:
    rates = {**RATES, "av3": {"1": 1.0}, "k9": {"1": 1.0}}
    bench_file(tmp_path, rates)
    measured = read_measured(tmp_path, num_speculative_tokens=4)
    assert measured.rates == {
        ("k0", 1): 100, ("k0", 8): 500, ("k2", 1): 150, ("k2", 8): 505, (AV, 1): 160, (AV, 8): 550,
    }  # fmt: skip
    assert (measured.workload, measured.loads, measured.lengths) == ("mix", [1, 8], Lengths(30, 20))


def test_errors_and_ranking_of_a_plan(tmp_path: Path) -> None:
    measured = read_measured(bench_file(tmp_path, RATES), 4)
    # at 8 the two that were measured within 2% may change places, but not k0 and av
    plan = plan_of({"k0": (90, 600, 1), "k1": (1, 1, 1), "k2": (165, 550, 1), AV: (176, 580, 1)})
    found = check(plan, measured)
    assert len(found.ratios) == 6
    assert found.ratios["k2", 1] == pytest.approx(1.1)
    assert found.median_error == pytest.approx(0.1)
    assert found.median_ratio == pytest.approx(1.0945, abs=0.001)
    alone, many = found.rankings.values()
    assert (alone.right, alone.pairs, alone.is_right, alone.regret) == (3, 3, True, 0.0)
    assert (many.right, many.pairs, many.is_right) == (1, 2, False)
    assert (many.best, many.predicted_best, many.regret) == (AV, "k0", pytest.approx(1 - 500 / 550))
    assert found.num_right == found.to_dict()["rankings_right"] == 1


def test_passes_are_read_as_the_medians_are(tmp_path: Path) -> None:
    rates = {**RATES, "av4": {"1": 7.0}}
    path = bench_file(tmp_path, rates, workloads=("mix", "law"), passes=(1.1, 0.9))
    document = json.loads(path.read_text())
    for cell in document["cells"]:
        if (cell["workload"], cell["arm"], cell["load"], cell["pass"]) == ("mix", "k2", "8", 1):
            cell["failed"] = 3
        if (cell["workload"], cell["arm"], cell["load"], cell["pass"]) == ("mix", "k0", "8", 0):
            cell["steady_output_throughput"] = None
    path.write_text(json.dumps(document))
    measured = read_measured(path, 4, "mix")
    assert measured.passes.keys() == measured.rates.keys()
    assert measured.passes[AV, 1] == pytest.approx({0: 176.0, 1: 144.0}), "of two adaptive arms the first"
    assert measured.passes["k2", 8] == pytest.approx({0: 505 * 1.1})
    assert measured.passes["k0", 8] == pytest.approx({1: 450.0})
    assert measured.tells_apart("k0", AV, 1)
    assert check(plan_of({"k0": (1, 1, 1), "k2": (1, 1, 1), AV: (2, 2, 2)}), measured).num_ranked == 2


def passes_of(**rates: tuple[float, ...]) -> Measured:
    """Rates of each arm at one load, by pass."""
    median = {(arm, 8): sorted(by_pass)[len(by_pass) // 2] for arm, by_pass in rates.items()}
    return Measured("mix", median, Lengths(30, 20), {(arm, 8): dict(enumerate(by)) for arm, by in rates.items()})


def test_arms_whose_passes_scatter_more_than_they_differ_have_no_order() -> None:
    plan = plan_of({"k0": (90.0,), "k1": (100.0,), AV: (80.0,)}, loads=(8,))
    # the machine slows down from pass to pass, and the pairs still tell
    steady = passes_of(k0=(100, 80, 60), k1=(110, 87, 66), av=(130, 105, 78))
    assert steady.tells_apart("k0", "k1", 8)
    assert (check(plan, steady).rankings[8].pairs, check(plan, steady).rankings[8].right) == (3, 1)
    # 10% faster in every pair, and slower in the median of those that came through
    paired = passes_of(k0=(100, 80), k1=(110, 88, 66))
    assert paired.rates["k0", 8] > paired.rates["k1", 8]
    assert paired.tells_apart("k0", "k1", 8)
    assert not paired.tells_apart("k1", "k0", 8)
    scattered = passes_of(k0=(100, 80, 60), k1=(90, 87, 80), av=(101, 81, 60.5))
    assert not scattered.tells_apart("k0", "k1", 8), "9% more in the median, within the scatter"
    assert not scattered.tells_apart("k0", AV, 8), "certainly more, by 1%"
    found = check(plan, scattered).rankings[8]
    assert (found.pairs, found.is_right) == (0, False), "nothing to rank is no success"
    assert (check(plan, scattered).num_ranked, check(plan, steady).num_ranked) == (0, 1)


def test_what_cannot_be_compared_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bench\.json: no results of `adaverify bench`"):
        read_measured(tmp_path, 4)
    path = bench_file(tmp_path, RATES, workloads=("maths", "chat"))
    with pytest.raises(ConfigError, match=r"several workloads.*--workload: maths, chat"):
        read_measured(path, 4)
    assert read_measured(path, 4, "chat").workload == "chat"
    with pytest.raises(ConfigError, match=r"no arm of the plan .* 'law'; measured were k0, k2, av on maths, chat"):
        read_measured(path, 4, "law")
    with pytest.raises(ConfigError, match="plan has the loads 3, measured were 1, 8; leave out --max-concurrency"):
        check(plan_of({"k0": (1,), AV: (1,)}, loads=(3,)), read_measured(path, 4, "chat"))
