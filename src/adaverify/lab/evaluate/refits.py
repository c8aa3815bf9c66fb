"""The coefficients that the serving estimator had, refit by refit, as recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.evaluate.sample import pairs_of
from adaverify.lab.trace import Trace

MAX_POINTS = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RefitPath:
    """Slope and intercepts of one run over its refits.

    Attributes
    ----------
    run, drafter : str
    num_refits : int
        Of the whole run.
    step, refit : ndarray of int64, shape [P]
        The step from which on the coefficients held, and the refits before it: the first, the last, and at most 200
        in all.
    slope : ndarray, shape [P]
    intercepts : ndarray, shape [P, K]
    """

    run: str
    drafter: str
    num_refits: int
    step: NDArray[np.int64]
    refit: NDArray[np.int64]
    slope: Floats
    intercepts: Floats

    def to_dict(self) -> dict[str, Any]:
        """Numbers for JSON."""
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}


def refit_paths(trace: Trace) -> list[RefitPath]:
    """One path for each run whose estimator was refitted."""
    drafters = {number: pair.label for pair in pairs_of(trace.runs) for number in pair.runs}
    paths = []
    for number, run in enumerate(trace.runs):
        steps = trace.steps.select(trace.steps.run == number)
        if not len(steps) or steps.num_refits[-1] == steps.num_refits[0]:
            continue
        changes = np.flatnonzero(np.append(True, np.diff(steps.num_refits) != 0))
        kept = changes[np.unique(np.linspace(0, len(changes) - 1, MAX_POINTS).round().astype(int))]
        paths.append(
            RefitPath(
                run=run.run,
                drafter=drafters[number],
                num_refits=int(steps.num_refits[-1]),
                step=steps.step[kept],
                refit=steps.num_refits[kept].astype(np.int64),
                slope=steps.slope[kept].astype(np.float64),
                intercepts=steps.intercepts[kept, : run.num_speculative_tokens].astype(np.float64),
            )
        )
    return paths
