"""The cost table behind published throughputs: DeepSeek-V4-Pro with a DSpark drafter on eight B300.

Throughput at concurrency c with K drafts is ``c * tokens(K) / (draft(c) + verify(c * (1 + K)))``. Without speculation
it gives ``verify`` up to the largest concurrency outright; tokens per round, the drafter's cost and how verification
goes on beyond are fitted to the rows with K = 3, 5 and 7 together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import least_squares

from adaverify.lab.plan.tables import SourcedCosts
from adaverify.lab.trace.trace import Floats
from adaverify.policy.cost import CostCurve, CostTable

NAME = "8xb300-deepseek-v4-pro"
CONCURRENCIES = (1, 16, 32, 64, 128, 256)
# output tokens per second at these, by K
PUBLISHED = {
    0: (101, 1124, 1664, 2774, 4406, 6323),
    3: (231, 1906, 3112, 4856, 7402, 9728),
    5: (251, 1939, 3071, 4931, 6846, 8766),
    7: (251, 1878, 2939, 4611, 6250, 7609),
}
_DEPTHS = (3, 5, 7)
_START = (2.8, 3.2, 3.5, 1.0, 0.01, 0.05)
_LEAST, _MOST = (1.0, 1.0, 1.0, 0.0, 0.0, 0.0), (4.0, 6.0, 8.0, 20.0, 1.0, 1.0)


def fit_published() -> SourcedCosts:
    """Fit the table anew; the one shipped is what this gave."""
    concurrency = np.array(CONCURRENCIES)
    verify = 1e3 * concurrency / np.array(PUBLISHED[0])

    def log_ratios(parameters: Floats) -> Floats:
        """Predicted over published, in logarithms, [3 * 6]."""
        first, more, slope = parameters[3:]
        rows = []
        for depth, tokens in zip(_DEPTHS, parameters, strict=False):
            packed = concurrency * (1 + depth)
            beyond = verify[-1] + slope * (packed - concurrency[-1])
            verify_ms = np.where(packed > concurrency[-1], beyond, np.interp(packed, concurrency, verify))
            step_ms = first + more * (concurrency - 1) + verify_ms
            rows.append(np.log(1e3 * concurrency * tokens / step_ms / np.array(PUBLISHED[depth])))
        return np.concatenate(rows)

    found = least_squares(log_ratios, _START, bounds=(_LEAST, _MOST), x_scale=_START)
    *tokens, first, more, slope = found.x.tolist()
    largest = CONCURRENCIES[-1]
    beyond = 8 * largest
    ends = (verify[-1] + slope * (beyond - largest), first + more * (largest - 1))
    costs = CostTable(
        verify=CostCurve((*CONCURRENCIES, beyond), tuple(_rounded([*verify, ends[0]]))),
        draft=CostCurve((1, largest), tuple(_rounded([first, ends[1]]))),
    )
    ratios = np.exp(log_ratios(found.x)).reshape(len(_DEPTHS), -1)
    return SourcedCosts(costs, NAME, "published", fit=_report(tokens, ratios), **_TEXTS)


def _report(tokens: list[float], ratios: Floats) -> dict[str, Any]:
    return {
        "tokens_per_round": dict(zip(map(str, _DEPTHS), _rounded(tokens), strict=True)),
        "concurrencies": list(CONCURRENCIES),
        "fitted_over_published": {
            str(depth): _rounded(row.tolist()) for depth, row in zip(_DEPTHS, ratios, strict=True)
        },
        "median_absolute_error": round(float(np.median(abs(ratios - 1))), 4),
        "largest_absolute_error": round(float(abs(ratios - 1).max()), 4),
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(float(value), 3) for value in values]


_TEXTS: dict[str, Any] = {
    "what": "8x B300, DeepSeek-V4-Pro, DSpark drafter (a block in one pass)",
    "source": "output tokens/s of the vLLM blog of 2026-08-14: no speculation and K = 3, 5, 7 at 1 to 256 at once",
    "derivation": "verify up to 256 tokens: concurrency / throughput without speculation, which has prompts and "
    "serving in it, so plan with --input-len 0; beyond: one slope; draft: linear in requests, for a whole block. The "
    "slope, the draft cost and the tokens per round are fitted to the 18 throughputs with K = 3, 5, 7 (least squares "
    "of logarithms). Draft cost and tokens per round are told apart only by how throughput changes with load.",
}
