"""Coupled against standard verification on the same contexts: how much is accepted, and how well it is told.

``python -m benchmarks.coupled DRAFTER ... --prompts FILE.jsonl ...`` serves with coupled verification, verifies all
that is drafted, and looks at every draft up to the first rejection. For the same target and draft laws, these to
several powers, it computes the chance of acceptance under both kinds of verification: 1 - TV, and that of two races
with the same noise. It also draws a standard draft and its label. What is accepted is told by the log-odds of q_max
with standard verification, with coupled by the prediction that the estimator made while serving. At temperature 1 with
top-p .95.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score
from torch import Tensor

from adaverify import LLM, SamplingParams
from adaverify.engine import engine as engine_module
from adaverify.engine.default_model import default_model_path
from adaverify.engine.records import StepRecord
from adaverify.sampling.coupled import SHARPNESS
from adaverify.sampling.laws import DraftLaws
from adaverify.sampling.overlap import coupled_overlap
from adaverify.sampling.processors import DRAFT_SHARPNESS, filtered_probabilities
from adaverify.sampling.request import SampleRequest
from benchmarks.common import file_prompts, keep, open_threads, trained_drafter

POWERS = (1.0, 1.15, DRAFT_SHARPNESS, SHARPNESS, 2.0, 3.0)
RESAMPLES = 400


class Contexts:
    """Observes a run: one row a draft, with what standard verification would have made of it.

    Attributes
    ----------
    rows : list of tuple
        Request, position, log-odds of q_max, prediction, accepted, standard label, 1 - TV by power, chances to meet by
        power.
    """

    wants_overlaps = True

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self._of_step: dict[tuple[int, int], tuple[float, ...]] = {}
        self._dice = torch.Generator().manual_seed(0)

    def compare(
        self, logits: Tensor, requests: Sequence[SampleRequest], laws: DraftLaws | None, depth: int, coupled: bool
    ) -> Tensor:
        """Stands in for ``draft_overlaps``: both kinds of verification on the rows of a step."""
        assert coupled
        self._of_step.clear()
        start = 0
        for r, request in enumerate(requests):
            count, params = len(request.draft_token_ids), request.params
            if count:
                assert laws is not None
                assert request.q_start is not None
                same = torch.ones(count)
                p = filtered_probabilities(
                    logits[start : start + count].float(),
                    same * params.temperature,
                    torch.zeros(count, dtype=torch.long),
                    same.double() * params.top_p,
                    same.double() * 0,
                )
                q = torch.zeros_like(p)
                laws.subtract_from(q, request.q_start + torch.arange(count))
                for i, (of_target, of_drafter) in enumerate(zip(p, -q, strict=True)):
                    self._of_step[r, i] = self._verify(of_target, of_drafter)
            start += request.num_rows
        return torch.full((len(requests), depth), torch.nan)

    def record(self, step: StepRecord) -> None:
        """Keep the drafts up to the first rejected one."""
        current = step.current
        for r, (accepted, within) in enumerate(zip(step.accepted, step.within, strict=True)):
            for i in range(min(accepted + 1, within)):
                known = (float(current.features[r, i]), float(current.confidences[r, i]), float(i < accepted))
                self.rows.append((step.plan.decodes[r].seed, i + 1, *known, *self._of_step[r, i]))

    def _verify(self, p: Tensor, q: Tensor) -> tuple[float, ...]:
        """Standard label, and the chances of acceptance by both kinds of verification."""
        support = ((p > 0) | (q > 0)).nonzero().squeeze(-1)
        p, q = p[support], q[support]
        laws = {power: q**power / (q**power).sum() for power in POWERS}
        used = laws[DRAFT_SHARPNESS]
        draft = torch.multinomial(used, 1, generator=self._dice)
        label = torch.rand(1, generator=self._dice) * used[draft] < p[draft]
        shared = [float(torch.minimum(p, law).sum()) for law in laws.values()]
        met = [float(coupled_overlap(p[None], law[None])) for law in laws.values()]
        return float(label), *shared, *met


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafters", nargs="+", help="folders of trained drafters")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="JSONL files with turns")
    parser.add_argument("--target", help="folder of the target (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--limit", type=int, default=24, help="prompts of each file")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--num-speculative-tokens", type=int, default=7)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--threads", type=int, help="torch threads")
    parser.add_argument("--name", default="coupled")
    args = parser.parse_args()
    args.target = args.target or str(default_model_path())
    with open_threads(args.threads):
        figures = {Path(folder).resolve().name: summary(observe(folder, args)) for folder in args.drafters}
    Console(width=120).print(as_table(figures))
    keep(args.name, {"powers": POWERS, "drafters": figures})


def observe(folder: str, args: argparse.Namespace) -> np.ndarray:
    """Serve the prompts with one drafter; one row a draft, as in :attr:`Contexts.rows`."""
    options = {"rejection_sample_method": "coupled", "draft_confidence": "estimator"}
    speculative = trained_drafter(folder, args.target, args.num_speculative_tokens, **options)
    llm = LLM(args.target, speculative, max_num_seqs=args.concurrency)
    speculation = llm.engine.speculation
    assert speculation is not None
    speculation.drafter.keeps_details = True
    contexts = Contexts()
    plain, engine_module.draft_overlaps = engine_module.draft_overlaps, contexts.compare  # type: ignore[assignment]
    llm.engine.observer = contexts
    prompts = [prompt for file in args.prompts for prompt in file_prompts(file, args.limit, llm.tokenizer)]
    params = [
        SamplingParams(temperature=1.0, top_p=0.95, max_tokens=args.max_tokens, seed=seed)
        for seed in range(len(prompts))
    ]
    try:
        llm.generate(prompts, params)
    finally:
        engine_module.draft_overlaps = plain
    return np.array(contexts.rows)


def summary(rows: np.ndarray) -> dict[str, Any]:
    """Figures of one drafter, with 95% intervals by resampling requests."""
    requests = np.unique(rows[:, 0])
    of_request = [np.flatnonzero(rows[:, 0] == request) for request in requests]
    dice = np.random.default_rng(0)
    resampled = []
    for _ in range(RESAMPLES):
        chosen = [of_request[i] for i in dice.integers(len(requests), size=len(requests))]
        resampled.append(measures(rows[np.concatenate(chosen)]))
    found = measures(rows)
    intervals = {name: np.quantile([sample[name] for sample in resampled], (0.025, 0.975)).tolist() for name in found}
    return {"drafts": len(rows), "requests": len(requests), "figures": found, "intervals": intervals}


def measures(rows: np.ndarray) -> dict[str, float]:
    """AUC of both, and what is accepted of both; chances rather than labels where they are known."""
    _request, _position, log_odds, prediction, accepted, label = rows[:, :6].T
    standard, coupled = roc_auc_score(label, log_odds), roc_auc_score(accepted, prediction)
    shared, met = rows[:, 6:].mean(axis=0).reshape(2, -1)
    of_standard, of_coupled = shared[POWERS.index(DRAFT_SHARPNESS)], met[POWERS.index(SHARPNESS)]
    figures = {
        "auc_standard": standard,
        "auc_coupled": coupled,
        "auc_gain": coupled - standard,
        "accepted_standard": of_standard,
        "accepted_coupled": of_coupled,
        "accepted_less": of_standard - of_coupled,
        "accepted_coupled_measured": accepted.mean(),
    }
    for name, chances in (("standard", shared), ("coupled", met)):
        figures |= {f"{name}_power_{power:g}": chance for power, chance in zip(POWERS, chances, strict=True)}
    return {name: float(figure) for name, figure in figures.items()}


def as_table(figures: dict[str, dict[str, Any]]) -> Table:
    """One row a figure, one column a drafter."""
    table = Table(title="Coupled and standard verification on the same contexts", title_justify="left")
    table.add_column("")
    for name, figure in figures.items():
        table.add_column(f"{name} ({figure['drafts']})", justify="right")
    for name in next(iter(figures.values()))["figures"]:
        cells = []
        for figure in figures.values():
            low, high = figure["intervals"][name]
            cells.append(f"{figure['figures'][name]:.3f} ({low:.3f} to {high:.3f})")
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    main()
