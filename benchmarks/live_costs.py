"""What keeping costs true costs: microseconds a step for learning, for the budget's tables and for the report.

The bar: 100 microseconds a step in all, at the default limits. Run with ``python -m benchmarks.live_costs``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

import numpy as np

from adaverify.policy import CostCurve, CostTable, LiveCosts, StepSize, StepTime
from benchmarks.common import Spread, keep, open_threads

SEATS, DEPTH, STEPS = 64, 7, 400
LIMITS = (1024, 8192)


def steps(count: int) -> list[tuple[StepSize, StepTime]]:
    """Steps of 16 requests with growing contexts, and a prompt in each tenth; all fit the smaller limit."""
    random = np.random.default_rng(0)
    made = []
    for number in range(count):
        prompt = int(random.integers(30, 300)) if number % 10 == 9 else 0
        packed = 16 + int(random.integers(0, 16 * DEPTH + 1)) + prompt
        size = StepSize(packed, 16, 16 * (100 + number), prompt, prompt * prompt // 2, DEPTH)
        made.append((size, StepTime(*(random.uniform(0.9, 1.1) * np.array([30.0, 60.0 + 0.5 * packed, 8.0])))))
    return made


def measure(limit: int, rounds: int) -> dict[str, Spread]:
    """Microseconds of processor time a call."""
    table = CostTable(CostCurve((1, 16, 64, 512), (50.0, 58.0, 90.0, 300.0)), CostCurve((1, 64), (20.0, 80.0)))
    costs = LiveCosts(table, SEATS, limit, DEPTH)
    calls: dict[str, Callable[[StepSize, StepTime], object]] = {
        "observe": costs.observe,
        "at": lambda size, time: costs.at(size),
        "errors": lambda size, time: (costs.live_errors.median_percent, costs.startup_errors.median_percent),
    }
    spent: dict[str, list[float]] = {name: [] for name in calls}
    made = steps(STEPS)
    for number in range(1 + rounds):
        for name, call in calls.items():
            start = process_time()
            for size, time in made:
                call(size, time)
            if number > 0:  # the first round warms up
                spent[name].append(1e6 * (process_time() - start) / STEPS)
    spent["all"] = [sum(parts) for parts in zip(*spent.values(), strict=True)]
    return {name: Spread.of(values) for name, values in spent.items()}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    figures = {}
    with open_threads(1):
        for limit in LIMITS:
            spreads = measure(limit, args.rounds)
            for name, spread in spreads.items():
                print(f"max_num_batched_tokens {limit}, {name:8} {spread} microseconds a step")
            figures[str(limit)] = {name: vars(spread) for name, spread in spreads.items()}
    keep("live_costs", figures)


if __name__ == "__main__":
    main()
