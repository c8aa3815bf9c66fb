"""A plan, and how it compares with a measurement, for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from adaverify.lab.plan.against import Check
from adaverify.lab.plan.plan import Plan
from adaverify.lab.plan.prediction import AV

_MARK = {"measured": "", "published": " (published figures)", "roofline": " (data sheet, optimistic)"}


def plan_table(plan: Plan, title: str) -> Table:
    """Tokens per second, an arm a row and a load a column; the fastest fixed depth of each load is marked."""
    costs, lengths = plan.costs, plan.lengths
    source = f"{costs.name}{_MARK.get(costs.kind, '')}: {costs.what}" + (f"; {costs.source}" if costs.source else "")
    table = _table(
        f"{title}: output tokens/s by requests at once",
        f"prompts of {lengths.input_len:.0f} tokens, answers of {lengths.output_len:.0f}; costs of {source}; "
        "*: best fixed depth",
        plan.loads,
    )
    for arm in plan.fixed:
        table.add_row(arm, *(_rate(plan, arm, load) for load in plan.loads), end_section=arm == plan.fixed[-1])
    table.add_row(AV, *(_rate(plan, AV, load) for load in plan.loads))
    table.add_row("of best", *(_ratio(plan.relative(AV, load)) for load in plan.loads))
    return table


def check_table(plan: Plan, check: Check) -> Table:
    """Predicted over measured, and whether the arms are ranked right."""
    loads = list(check.rankings)
    table = _table(
        f"Predicted / measured: {check.workload}",
        f"median error {check.median_error:.1%} (median ratio {check.median_ratio:.3f}); arms ranked right at "
        f"{check.num_right} of {len(loads)} loads: pairs measured more than 2% apart that are predicted in that order; "
        "lost: what the arm predicted to be fastest is short of the fastest",
        loads,
    )
    arms = [arm for arm in plan.arms if any((arm, load) in check.ratios for load in loads)]
    for arm in arms:
        cells = [check.ratios.get((arm, load)) for load in loads]
        table.add_row(arm, *("-" if ratio is None else f"{ratio:.3f}" for ratio in cells), end_section=arm == arms[-1])
    rankings = check.rankings.values()
    table.add_row(
        "pairs", *(Text(f"{one.right}/{one.pairs}", style="green" if one.is_right else "red") for one in rankings)
    )
    table.add_row("lost", *(f"{one.regret:.1%}" for one in rankings))
    return table


def _table(title: str, caption: str, loads: list[int]) -> Table:
    table = Table(
        title=Text(title),
        caption=Text(caption),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("arm", no_wrap=True)
    for load in loads:
        table.add_column(str(load), justify="right", no_wrap=True)
    return table


def _rate(plan: Plan, arm: str, load: int) -> Text:
    """Marked where it is the best fixed depth; green where nothing is faster."""
    is_fastest = plan.rates[arm, load] == max(plan.rates[other, load] for other in plan.arms)
    mark = "*" if arm == plan.best_fixed(load) else " "
    return Text(f"{plan.rates[arm, load]:.{_digits(plan)}f}{mark}", style="bold green" if is_fastest else "")


def _digits(plan: Plan) -> int:
    return 1 if min(plan.rates.values()) < 100 else 0


def _ratio(value: float) -> Text:
    return Text(f"{value:.3f} ", style="green" if value >= 1 else "red")
