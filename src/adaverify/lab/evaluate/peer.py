"""An online logistic regression of another library, as a peer of the paper's estimator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from adaverify.lab.trace import Drafts, Trace

MAX_PEER_LABELS = 200_000

Floats = NDArray[np.float64]


def river_is_installed() -> bool:
    """Whether the peer can be asked."""
    try:
        import river.linear_model  # noqa: F401
    except ImportError:
        return False
    return True


def river_prequential(trace: Trace, max_labels: int = MAX_PEER_LABELS) -> Floats:
    """Predict labelled drafts by river's scaled logistic regression, each step before learning from it.

    It reads what the paper's estimator reads: the log-odds of q_max and which position it is. It learns draft by
    draft in Python, so of a long trace only the first part of every run is predicted.

    Parameters
    ----------
    trace : Trace
    max_labels : int
        Over all runs, shared out by their length.

    Returns
    -------
    ndarray, shape [N]
        Chances, one for each of ``trace.labelled``; nan beyond the part that was predicted.
    """
    labelled = trace.labelled
    predicted = np.full(len(labelled), np.nan)
    for number, run in enumerate(trace.runs):
        first, end = (int(bound) for bound in np.searchsorted(labelled.run, [number, number + 1]))
        rows = slice(first, first + (end - first) * max_labels // max(max_labels, len(labelled)))
        predicted[rows] = list(_run_through(labelled.select(rows), run.num_speculative_tokens))
    return predicted


def _run_through(drafts: Drafts, K: int) -> Iterator[float]:
    """The chance of each draft of a run, in order."""
    from river.compose import Pipeline
    from river.linear_model import LogisticRegression
    from river.preprocessing import StandardScaler

    model = Pipeline(StandardScaler(), LogisticRegression())
    # zeros are written out: the scaler learns from what it is given alone
    one_hot = [{f"position {j}": float(i == j) for j in range(1, K + 1)} for i in range(K + 1)]
    values = zip(
        drafts.step.tolist(),
        drafts.position.tolist(),
        drafts.logit_q_max.tolist(),
        drafts.accepted.tolist(),
        strict=True,
    )
    for _, step in groupby(values, key=lambda draft: draft[0]):
        examples = [({"log_odds": f, **one_hot[i]}, label) for _, i, f, label in step]
        for features, _ in examples:
            yield model.predict_proba_one(features).get(True, 0.5)
        for features, label in examples:
            model.learn_one(features, label)
