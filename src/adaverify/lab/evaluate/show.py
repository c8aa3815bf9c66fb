"""An evaluation as tables for the terminal, readable at 100 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from adaverify.lab.evaluate.bootstrap import Estimate
from adaverify.lab.evaluate.evaluation import Evaluation
from adaverify.lab.evaluate.groups import Group
from adaverify.lab.evaluate.judging import Claim
from adaverify.lab.evaluate.measure import Measured
from adaverify.lab.evaluate.parts import Part, judged_part
from adaverify.lab.evaluate.scores import RAW_Q_MAX

_HOW = {"fitted": "fitted, cross-validated", "as it is": "as it is", "online": "online, before learning"}
_STYLES = {"holds": "green", "does not hold": "bold red", "undecided": "yellow"}


def tables(found: Evaluation) -> Iterator[RenderableType]:
    """What was counted, the scores, the coefficients and the claims, in this order."""
    counts = found.counts
    yield Text(
        f"{counts['labelled']:,} labelled of {counts['drafts']:,} drafts, {counts['requests']:,} requests. "
        f"± is half of a 95% interval over resampled requests. noise: what the ECE of a perfectly calibrated "
        "predictor would not exceed, 19 times in 20, on as many labels."
    )
    for warning in found.warnings:
        yield Text(warning, style="bold yellow")
    for part in found.parts:
        if part.positions in ("all", "from 2"):
            yield score_table(found, part)
    for name, why in found.absent.items():
        yield Text(f"{name}: {why}", style="dim")
    for drafter in dict.fromkeys(part.drafter for part in found.parts):
        yield position_table(found, drafter)
    yield sharing_table(found)
    yield coefficient_table(found)
    yield correlation_table(found)
    yield claim_table(found)


def score_table(found: Evaluation, part: Part) -> Table:
    """Every score on one part of the sample."""
    where = [_of(part.drafter, part.sampling)]
    where += ["without position 1"] if part.positions == "from 2" else []
    measured = {score: found.measurements[score.name].get(part) for score in found.scores}
    raw = found.measurements[RAW_Q_MAX][part]
    n, observed = raw.n, raw.observed
    table = _table(f"{', '.join(where)}: {n:,} labels, {observed:.4f} accepted")
    table.add_column("score", no_wrap=True)
    table.add_column("lossless")
    for heading in ("AUC", "log-loss", "ECE", "noise", "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    for how, scores in groupby(found.scores, key=lambda score: score.how):
        _section(table, _HOW[how])
        for score in scores:
            m = measured[score]
            name = score.name if m is None or m.n == n else f"{score.name} *"
            table.add_row(f" {name}", "yes" if found.is_lossless(score.name, part.drafter) else "no", *_cells(m))
    notes = [
        f"* {score.name}: {m.n:,} labels, {score.note or 'those with a value'}"
        for score, m in measured.items()
        if m is not None and m.n != n
    ]
    table.caption = "\n".join(notes) or None
    return table


def position_table(found: Evaluation, drafter: str) -> Table:
    """AUC of every score at each position, of the requests that the drafter is judged by."""
    sampling = judged_part(found.parts, drafter).sampling
    own = [part for part in found.parts if (part.drafter, part.sampling) == (drafter, sampling)]
    parts = [part for part in own if part.is_one_position]
    table = _table(f"{_of(drafter, sampling)}: AUC by position")
    table.add_column("score")
    for part in parts:
        table.add_column(part.positions, justify="right")
    for score in found.scores:
        aucs = [found.measurements[score.name].get(part) for part in parts]
        table.add_row(score.name, *("no labels" if m is None else _number(m.auc.value) for m in aucs))
    labels = [found.measurements[RAW_Q_MAX][part].n for part in parts]
    table.add_row("labels", *(f"{n:,}" for n in labels), style="dim")
    return table


def sharing_table(found: Evaluation) -> Table:
    """What one slope costs."""
    table = _table("One slope for all positions against a slope each")
    for heading in ("drafter", "AUC lost", "log-loss added"):
        table.add_column(heading, justify="left" if heading == "drafter" else "right")
    for sharing in found.sharing:
        table.add_row(_of(sharing.drafter, sharing.sampling), _spread(sharing.auc, 5), _spread(sharing.log_loss, 5))
    return table


def coefficient_table(found: Evaluation) -> Table:
    """Slope and intercepts by drafter, dataset and kind of request."""
    table = _table("Coefficients fitted offline (entropy, accepted, gap: at position 1; gap = accepted - mean q_max)")
    table.add_column("fitted to")
    for heading in ("slope", "intercept 1", "last", "entropy", "accepted", "gap"):
        table.add_column(heading, justify="right", no_wrap=True)
    fitted = found.coefficients
    for drafter in fitted.drafters:
        _section(table, drafter)
        # where there are two kinds, the drafter's law is that of its sampled requests
        whole = [group for group in fitted.by_drafter if group.sampling == "all"]
        for group in (*whole, *fitted.by_sampling, *fitted.by_dataset):
            if group.drafter == drafter:
                table.add_row(*_coefficient_row(group))
    return table


def correlation_table(found: Evaluation) -> Table:
    """What slope and first intercept go along with over datasets."""
    table = _table("Correlations over datasets, where there are three or more")
    for heading in ("of", "with"):
        table.add_column(heading)
    for heading in ("groups", "correlation"):
        table.add_column(heading, justify="right")
    known = [c for c in found.coefficients.correlations if c.estimate.value is not None]
    for drafter in dict.fromkeys(c.drafter for c in known):
        _section(table, _of(drafter, found.coefficients.sampling.get(drafter, "all")))
        for c in known:
            if c.drafter == drafter:
                names = (c.of.replace("_", " "), c.with_.replace("_", " "))
                table.add_row(f" {names[0]}", names[1], str(c.num_groups), _ends(c.estimate))
    return table


def claim_table(found: Evaluation) -> Table:
    """Verdicts, each with the numbers it rests on."""
    table = _table("The paper's claims")
    for heading in ("claim", "verdict", "by"):
        table.add_column(heading, overflow="fold")
    for drafter in dict.fromkeys(claim.drafter for claim in found.claims):
        _section(table, drafter)
        for claim in found.claims:
            if claim.drafter == drafter:
                table.add_row(claim.text, Text(claim.verdict, style=_STYLES[claim.verdict]), _reason(claim))
    return table


def _reason(claim: Claim) -> str:
    numbers = {name: claim.numbers[name] for name in claim.bars}
    known = [f"{name}: {_ends(n)}" for name, n in numbers.items() if isinstance(n, Estimate) and n.value is not None]
    return "; ".join([*known, *([claim.why] if claim.why else [])])


def _of(name: str, sampling: str) -> str:
    return name if sampling == "all" else f"{name}, {sampling} requests"


def _section(table: Table, name: str) -> None:
    table.add_row(Text(name, style="italic"))


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, pad_edge=False)


def _cells(m: Measured | None) -> list[str]:
    if m is None:
        return ["no labels", "", "", "", ""]
    numbers = [*map(_spread, (m.auc, m.log_loss, m.ece)), _number(m.ece_of_calibrated), _number(m.mean_prediction)]
    # without leading zeros the row fits
    return [re.sub(r"\b0\.", ".", number) for number in numbers]


def _coefficient_row(group: Group) -> list[str]:
    kind = "all" if group.sampling == "all" else f"{group.sampling} requests"
    part = kind if group.dataset is None else _of(group.dataset, group.sampling)
    known = [intercept for intercept in group.intercepts if intercept.value is not None]
    last = _number(known[-1].value, 2) if known else "-"
    others = [_number(group.quantities[name].value, 3) for name in ("entropy", "acceptance", "confidence_gap")]
    spreads = [_spread(group.estimate(name), 3) for name in ("slope", "first_intercept")]
    return [f" {part}", *spreads, last, *others]


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _spread(estimate: Estimate, digits: int = 4) -> str:
    """Value and half of its interval."""
    if estimate.low is None or estimate.high is None:
        return _number(estimate.value, digits)
    return f"{_number(estimate.value, digits)} ±{(estimate.high - estimate.low) / 2:.{digits}f}"


def _ends(estimate: Estimate) -> str:
    """Value and the ends of its interval."""
    ends = "" if estimate.low is None else f" [{_number(estimate.low)}, {_number(estimate.high)}]"
    return _number(estimate.value) + ends
