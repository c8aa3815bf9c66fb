"""What the tests of the plan share: cheap plans, and results of a bench made up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaverify.lab.bench.summary import THROUGHPUT, USER
from adaverify.lab.plan import Lengths, Plan, Prediction, SourcedCosts
from adaverify.lab.replay import Window
from lab import synthetic

COSTS = SourcedCosts(synthetic.COSTS, "here", "measured", "a machine")


def plan_of(rates: Mapping[str, tuple[float, ...]], loads: tuple[int, ...] = (1, 8, 64)) -> Plan:
    """A plan with these tokens per second by load; answers of one token decode nothing."""
    found = []
    for i, load in enumerate(loads):
        for arm, by_load in rates.items():
            window = Window(0, 1, 1, 1, 1.0, 0, 0, 0, 0, 0, None, None, None)
            found.append(Prediction(arm, load, window, 1e3 / by_load[i], Lengths(1, 1)))
    return Plan(tuple(found), Lengths(1, 1), COSTS)


def bench_file(
    folder: Path,
    rates: Mapping[str, Mapping[str, float]],
    workloads: tuple[str, ...] = ("mix",),
    passes: tuple[float, ...] = (1.0,),
) -> Path:
    """``bench.json`` with throughputs by arm and load, of prompts of 30 and answers of 20 tokens.

    Each pass had its share of the throughput, whatever the arm.
    """

    def arm(name: str) -> dict[str, Any]:
        config = None
        if name != "k0":
            deep = int(name.lstrip("avk") or 4)
            config = {"num_speculative_tokens": deep, "enable_adaptive_verification": name.startswith("av")}
        return {"name": name, "speculative_config": config, "url": None, "command": None}

    points = [
        {"arm": name, "workload": workload, "load": load, "steady_output_throughput": {"median": rate}}
        for workload in workloads
        for name, by_load in rates.items()
        for load, rate in by_load.items()
    ]
    totals = {"completed": 10, "total_input_tokens": 300, "total_output_tokens": 200}
    cells = [
        {
            "workload": point["workload"],
            "arm": point["arm"],
            "load": point["load"],
            "pass": number,
            "failed": 0,
            **totals,
        }
        | {THROUGHPUT: point["steady_output_throughput"]["median"] * share, USER: 1.0}
        for point in points
        for number, share in enumerate(passes)
    ]
    document = {"settings": {"arms": [arm(name) for name in rates]}, "cells": cells, "summary": {"points": points}}
    path = folder / "bench.json"
    path.write_text(json.dumps(document))
    return path
