"""What follows from a plan, in two sentences."""

from __future__ import annotations

from itertools import groupby
from statistics import geometric_mean

from adaverify.lab.plan.plan import Plan
from adaverify.lab.plan.prediction import AV

# what a prediction cannot tell apart
TIE = 0.02


def advice(plan: Plan) -> str:
    """Whether adaptive verification is worth it, against the one depth to set otherwise, and which that is."""
    return f"{_verdict(plan)} {_depths(plan)}"


def _verdict(plan: Plan) -> str:
    single = plan.one_fixed
    ratios = {load: plan.rates[AV, load] / plan.rates[single, load] for load in plan.loads}
    mean = geometric_mean(ratios.values())
    worth = "is worth it" if mean > 1 + TIE else "makes no difference" if mean >= 1 - TIE else "is not worth it"
    if len(ratios) == 1:
        return f"AV {worth} here: {mean:.2f}x of {_named(single)}."
    worst, best = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return (
        f"AV {worth} here: {mean:.2f}x of {_named(single)}, the best single setting, over these loads "
        f"({ratios[worst]:.2f}x at {worst}, {ratios[best]:.2f}x at {best})."
    )


def _depths(plan: Plan) -> str:
    """What to set without it, and where another depth would be clearly better."""
    single = plan.one_fixed

    def to_set(load: int) -> str:
        return single if plan.relative(single, load) >= 1 - TIE else plan.best_fixed(load)

    stretches = [(arm, list(loads)) for arm, loads in groupby(plan.loads, to_set)]
    if len(stretches) == 1:
        return f"Without AV set {_named(single)}, within {TIE:.0%} of the best at every load here."
    parts = [f"{_named(arm)} at {loads[0]}" + (f" to {loads[-1]}" if loads[1:] else "") for arm, loads in stretches]
    return f"Without AV set {_named(single)}; were it set for each load, {', '.join(parts)}."


def _named(arm: str) -> str:
    return "no speculation" if arm == "k0" else f"K = {arm[1:]}"
