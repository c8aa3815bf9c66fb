"""Is the emitted text distributed as the target says? A chi-square test against the exact law of short outputs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from scipy import stats
from transformers import PreTrainedModel

from adaverify.engine.stats import EngineStats
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.processors import SamplingTensors, filtered_probabilities

Text = tuple[int, ...]
_MIN_EXPECTED = 5.0


class Conclusion(Enum):
    """What a test of losslessness says."""

    EXACT = "exact"
    BIASED = "biased"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Losslessness:
    """Outcome of a test.

    Attributes
    ----------
    conclusion : Conclusion
        Inconclusive when nothing was drafted, or nothing was left out: neither trimmed nor, for want of worth, drafted;
        then adaptive verification was not tested.
    p_value : float
        Chance of a deviation at least as large if the output is exact.
    num_samples, num_cells : int
    drafted, admitted, accepted : int
    """

    conclusion: Conclusion
    p_value: float
    num_samples: int
    num_cells: int
    drafted: int
    admitted: int
    accepted: int


@torch.inference_mode()
def exact_law(model: PreTrainedModel, prompt: list[int], length: int, params: SamplingParams) -> dict[Text, float]:
    """Probability of every output of ``length`` tokens under ``params`` (temperature, top-k, top-p, min-p).

    Parameters
    ----------
    model : PreTrainedModel
        With its own attention; a small vocabulary, since V ** length texts are enumerated.
    """
    vocab_size = model.config.vocab_size
    law: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        texts = list(law)
        ids = torch.tensor([[*prompt, *text] for text in texts])
        logits = torch.cat([model(part, use_cache=False).logits[:, -1].float() for part in ids.split(1024)])
        each = SamplingTensors.from_params([params] * len(texts), [0] * len(texts), logits.device)
        p = filtered_probabilities(logits, each.temperature, each.top_k, each.top_p, each.min_p).double().tolist()
        law = {
            (*text, token): law[text] * row[token]
            for (text, row), token in itertools.product(zip(texts, p, strict=True), range(vocab_size))
            if row[token] > 0.0
        }
    return law


def check_losslessness(
    samples: Iterable[Text], law: dict[Text, float], stats_after: EngineStats, significance: float = 1e-3
) -> Losslessness:
    """Pearson's chi-square of ``samples`` against ``law``; cells of small expectation are pooled.

    Parameters
    ----------
    samples : iterable of tuple of int
        Outputs, independent of one another.
    law : dict
        From :func:`exact_law`.
    stats_after : EngineStats
        Of the engine that drew them: tells whether anything was drafted and trimmed.
    significance : float
        Biased below this p-value.
    """
    counts = Counter(samples)
    total = sum(counts.values())
    p_value, num_cells = _chi_square(counts, law, total)
    drafted, admitted = sum(stats_after.drafted), sum(stats_after.admitted)
    if p_value < significance:
        conclusion = Conclusion.BIASED
    elif admitted == 0 or (admitted == drafted and not stats_after.num_early_stops):
        conclusion = Conclusion.INCONCLUSIVE
    else:
        conclusion = Conclusion.EXACT
    return Losslessness(conclusion, p_value, total, num_cells, drafted, admitted, sum(stats_after.accepted))


def _chi_square(counts: Counter[Text], law: dict[Text, float], total: int) -> tuple[float, int]:
    """p-value and number of cells; a text that the law excludes makes the p-value 0."""
    if any(text not in law for text in counts):
        return 0.0, len(law)
    texts = sorted(law, key=law.__getitem__)
    expected = np.array([law[text] for text in texts]) * total
    observed = np.array([counts[text] for text in texts], dtype=float)
    # rarest first: pool until each cell is expected often enough for the chi-square law to hold
    edges = np.unique(np.floor(np.cumsum(expected) / _MIN_EXPECTED), return_index=True)[1]
    pooled = [np.add.reduceat(values, edges) for values in (observed, expected)]
    large = pooled[1] >= _MIN_EXPECTED
    cells = [np.append(values[large], values[~large].sum()) for values in pooled]
    keep = cells[1] > 0
    statistic = float((((cells[0] - cells[1]) ** 2)[keep] / cells[1][keep]).sum())
    degrees = int(keep.sum()) - 1
    return float(stats.chi2.sf(statistic, degrees)), degrees + 1
