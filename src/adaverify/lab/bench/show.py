"""A comparison in tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from adaverify.lab.bench.settings import Settings
from adaverify.lab.bench.statistics import Spread
from adaverify.lab.bench.summary import Comparison, Point, Summary

DISTURBED = 0.05
"""Share of the machine taken by others from which on a measurement is called disturbed."""


def tables(summary: Summary, settings: Settings, metrics: Sequence[str]) -> list[Table]:
    """Points of each workload, then adaptive arms against the best fixed depth and against themselves.

    Parameters
    ----------
    summary : Summary
    settings : Settings
    metrics : sequence of str
        Of ``ttft``, ``tpot``, ``itl``, ``e2el``: shown as median and highest percentile.
    """
    found = [_points(summary, settings, workload, metrics) for workload in summary.workloads]
    if summary.against_best_fixed:
        found.append(_comparisons("Adaptive against the best fixed depth, in hindsight", summary.against_best_fixed))
    if summary.gains:
        found.append(_comparisons("Gain: adaptive verification on, against off", summary.gains))
    return found


def warnings(summary: Summary) -> list[str]:
    """What a reader must know before the figures."""
    found = []
    if summary.failed:
        found.append(
            f"{summary.failed} requests failed; the {summary.incomplete} measurements they belong to count nowhere. "
            "Run the command again to repeat them"
        )
    elif summary.incomplete:
        found.append(f"{summary.incomplete} measurements are too short to tell a speed; raise --output-len")
    disturbed = [point for point in summary.points if (point.other_cpu_share or 0) > DISTURBED]
    if disturbed:
        worst = max(point.other_cpu_share or 0 for point in disturbed)
        found.append(
            f"other work took up to {worst:.0%} of the machine during {len(disturbed)} of {len(summary.points)} points"
        )
    if summary.preemptions:
        found.append(
            f"{summary.preemptions} requests were sent back to waiting, the KV pool being full; raise "
            "--kv-cache-memory-bytes, or use --servers alone"
        )
    if any(point.throughput.count < 2 for point in summary.points):
        found.append("one pass gives no interval; --passes 3 or more does")
    return found


def _points(summary: Summary, settings: Settings, workload: str, metrics: Sequence[str]) -> Table:
    highest = max(settings.percentiles, default=None)
    table = Table(
        title=Text(f"{workload}: output tokens/s, median (lowest to highest) over passes"),
        caption=f"ratio: to {summary.baseline}, in pairs, with 95% interval; *: on the frontier of throughput and "
        "tokens/s a user; drafts: drafted, admitted, accepted a round",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("load", justify="right", no_wrap=True)
    table.add_column("arm", no_wrap=True)
    for heading in ("tokens/s", "a user", "ratio", "drafts"):
        table.add_column(heading, justify="right")
    for metric in metrics:
        percentile = "" if highest is None else f", p{highest:g}"
        table.add_column(f"{metric} ms\nmedian{percentile}", justify="right")
    for load in summary.loads:
        points = [point for point in summary.of_workload(workload) if point.load == load]
        best = max((point.throughput.median for point in points), default=0.0)
        for number, point in enumerate(points):
            style = "bold green" if point.throughput.median == best else None
            table.add_row(
                *map(Text, _cells(point, metrics, highest)), style=style, end_section=number == len(points) - 1
            )
    return table


def _cells(point: Point, metrics: Sequence[str], highest: float | None) -> list[str]:
    drafts = [point.per_round.get(name) for name in ("drafted", "admitted", "accepted")]
    return [
        point.load,
        point.arm + (" *" if point.on_frontier else ""),
        _spread(point.throughput),
        f"{point.user.median:.1f}",
        str(point.ratio or "-"),
        ", ".join("-" if value is None else f"{value:.2f}" for value in drafts) if any(drafts) else "-",
        *(_latency(point, metric, highest) for metric in metrics),
    ]


def _spread(spread: Spread) -> str:
    return f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})"


def _latency(point: Point, metric: str, highest: float | None) -> str:
    names = [f"median_{metric}_ms", *([] if highest is None else [f"p{highest:g}_{metric}_ms"])]
    values = [point.latencies.get(name) for name in names]
    return ", ".join("-" if value is None else f"{value.median:.0f}" for value in values)


def _comparisons(title: str, comparisons: Sequence[Comparison]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for heading in ("workload", "load", "arm", "against", "ratio"):
        table.add_column(heading, justify="right" if heading in ("load", "ratio") else "left", no_wrap=True)
    for one in comparisons:
        style = "green" if one.ratio.value >= 1 else "red"
        row = (one.workload, one.load, one.arm, one.reference)
        table.add_row(*map(Text, row), Text(str(one.ratio), style=style))
    return table
