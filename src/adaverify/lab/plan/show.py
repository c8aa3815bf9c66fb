"""A plan, and how it compares with a measurement, for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from adaverify.lab.plan.against import Check, Ranking
from adaverify.lab.plan.plan import Plan
from adaverify.lab.plan.prediction import AV

_MARK = {"measured": "", "published": " (published figures)", "roofline": " (data sheet, optimistic)"}


def plan_table(plan: Plan, title: str) -> Group:
    """Tokens per second, an arm a row and a load a column; the fastest fixed depth of each load is marked."""
    table = _table(plan.loads)
    for arm in plan.fixed:
        table.add_row(arm, *(_rate(plan, arm, load) for load in plan.loads), end_section=arm == plan.fixed[-1])
    table.add_row(AV, *(_rate(plan, AV, load) for load in plan.loads))
    table.add_row("of best", *(_ratio(plan.relative(AV, load)) for load in plan.loads))
    costs, lengths = plan.costs, plan.lengths
    source = f"{costs.name}{_MARK.get(costs.kind, '')}: {costs.what}" + (f"; {costs.source}" if costs.source else "")
    return _framed(
        f"{title}: output tokens/s by requests at once",
        table,
        f"prompts of {lengths.input_len:.0f} tokens, answers of {lengths.output_len:.0f}; *: best fixed depth\n"
        f"costs of {source}",
    )


def check_table(check: Check) -> Group:
    """Predicted over measured, and whether the arms are ranked right."""
    loads = list(check.rankings)
    table = _table(loads)
    arms = list(dict.fromkeys(arm for arm, _ in check.ratios))
    for arm in arms:
        cells = [check.ratios.get((arm, load)) for load in loads]
        table.add_row(arm, *("-" if ratio is None else f"{ratio:.3f}" for ratio in cells), end_section=arm == arms[-1])
    rankings = check.rankings.values()
    table.add_row("pairs", *(Text(f"{one.right}/{one.pairs}", style=_color(one)) for one in rankings))
    table.add_row("lost", *(f"{one.regret:.1%}" for one in rankings))
    return _framed(
        f"Predicted / measured: {check.workload}",
        table,
        f"median error {check.median_error:.1%}, median ratio {check.median_ratio:.3f}; arms ranked right at "
        f"{check.num_right} of the {check.num_ranked} loads where any can be told apart\npairs: of those that the "
        "measurement tells apart, predicted in that order; lost: by the arm predicted to be fastest",
    )


def _color(ranking: Ranking) -> str:
    if ranking.pairs == 0:
        return ""
    return "green" if ranking.is_right else "red"


def _table(loads: list[int]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("arm", no_wrap=True)
    for load in loads:
        table.add_column(str(load), justify="right", no_wrap=True)
    return table


def _framed(title: str, table: Table, caption: str) -> Group:
    """Title and caption as wide as the terminal; a table's own are only as wide as the table."""
    return Group(Text(title, style="italic"), table, Text(caption, style="dim"))


def _rate(plan: Plan, arm: str, load: int) -> Text:
    """Marked where it is the best fixed depth; green where nothing is faster."""
    is_fastest = plan.rates[arm, load] == max(plan.rates[other, load] for other in plan.arms)
    mark = "*" if arm == plan.best_fixed(load) else " "
    return Text(f"{plan.rates[arm, load]:.{_digits(plan)}f}{mark}", style="bold green" if is_fastest else "")


def _digits(plan: Plan) -> int:
    return 1 if min(plan.rates.values()) < 100 else 0


def _ratio(value: float) -> Text:
    return Text(f"{value:.3f} ", style="green" if value >= 1 else "red")
