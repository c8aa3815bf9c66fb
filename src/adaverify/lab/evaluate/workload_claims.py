"""The paper's claims on what slope and intercepts measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from adaverify.lab.evaluate.bootstrap import Estimate
from adaverify.lab.evaluate.coefficients import Coefficients
from adaverify.lab.evaluate.groups import OF_HALVES, Group
from adaverify.lab.evaluate.judging import Claim, ratio_of
from adaverify.lab.evaluate.parts import ALL_DRAFTERS
from adaverify.lab.evaluate.permutation import MAX_LUCK

STEADY_FACTOR = 1.25
LUCK = "share of random pairings of the datasets that correlate as much"


def claims_on_workloads(coefficients: Coefficients, drafter: str) -> Iterator[Claim]:
    """A steady slope, and intercepts that follow the workload, over the datasets of one drafter."""
    groups = [group for group in coefficients.by_dataset if group.drafter == drafter]
    sampling = coefficients.sampling[drafter]
    spread, why = Estimate(), "" if len(groups) > 1 else "fewer than two datasets"
    if len(groups) > 1:
        spread = _largest_over_smallest(groups)
    yield Claim.judged(
        drafter,
        f"The slope is steady over workloads: the largest at most {STEADY_FACTOR:g}x the smallest (paper: 1.08x)",
        {"largest slope / smallest slope": ("below", STEADY_FACTOR)},
        {
            "largest slope / smallest slope": spread,
            "correlation of slope and entropy": coefficients.correlation(drafter, "slope", "entropy").estimate,
            **{f"slope on {group.dataset}": group.estimate("slope") for group in groups},
        },
        why,
        sampling,
    )
    why, over = "" if len(groups) > 2 else "fewer than three datasets", f"; over {len(groups)} datasets"
    falls = coefficients.correlation(drafter, "first_intercept", "entropy")
    name = "correlation of first intercept and entropy"
    claim = Claim.judged(
        drafter,
        f"The first intercept falls with the workload's entropy (paper: correlation -.89){over}",
        {name: ("below", 0.0)},
        {
            name: falls.estimate,
            LUCK: falls.luck_below,
            **{f"first intercept on {group.dataset}": group.estimate("first_intercept") for group in groups},
            **{f"entropy on {group.dataset}": group.estimate("entropy") for group in groups},
        },
        why,
        sampling,
    )
    yield beyond_luck(claim, holding=falls.luck_below, failing=falls.luck_above)
    rises = coefficients.correlation(drafter, *OF_HALVES)
    if not why and rises.estimate.value is None:
        why = "a dataset of too few requests to take intercept and gap from different ones"
    name = "correlation of first intercept and acceptance - mean q_max of other requests"
    claim = Claim.judged(
        drafter,
        "The intercept measures how far the draft is over- or underconfident on a workload: it rises with acceptance "
        f"- mean q_max, of one half of the requests each{over}",
        {name: ("above", 0.0)},
        {
            name: rises.estimate,
            LUCK: rises.luck_above,
            **{f"acceptance - mean q_max on {group.dataset}": group.estimate("confidence_gap") for group in groups},
        },
        why,
        sampling,
    )
    yield beyond_luck(claim, holding=rises.luck_above, failing=rises.luck_below)


def beyond_luck(claim: Claim, holding: float | None, failing: float | None) -> Claim:
    """The claim, undecided where as strong a correlation is not rare among groups that are paired at random.

    The interval is that of the requests: of few groups even unrelated ones may correlate, however many requests each
    has.

    Parameters
    ----------
    claim : Claim
    holding, failing : float or None
        P-values of a correlation on the claim's side, and on the other.
    """
    chance = {"holds": holding, "does not hold": failing}.get(claim.verdict)
    if chance is None or chance < MAX_LUCK:
        return claim
    return claim.undecided(f"paired at random, so few datasets correlate as much in {chance:.0%} of all ways")


def claims_on_pairs(coefficients: Coefficients) -> Iterator[Claim]:
    """What slope and intercept vary with: the pair of models or the workload."""
    if len(coefficients.distinct) < 2:
        return
    ratios = {name: _between_over_within(coefficients, name) for name in ("slope", "first_intercept")}
    informative = coefficients.correlation(ALL_DRAFTERS, "slope", "auc").estimate
    yield Claim.judged(
        ALL_DRAFTERS,
        "The slope belongs to the pair: it varies more between drafters than between the workloads of one; over "
        f"{len(coefficients.distinct)} drafters",
        {"standard deviation of slope between drafters / between workloads": ("above", 1.0)},
        {
            "standard deviation of slope between drafters / between workloads": ratios["slope"],
            "the same of the first intercept": ratios["first_intercept"],
            "correlation of slope and AUC of q_max over all groups": informative,
            **{
                f"slope of {group.drafter}": group.estimate("slope")
                for group in coefficients.by_drafter
                if group.drafter in coefficients.distinct
            },
        },
        "" if ratios["slope"].value is not None else "fewer than two drafters with two datasets each",
        "sampled" if "sampled" in map(coefficients.sampling.get, coefficients.distinct) else "all",
    )


def _largest_over_smallest(groups: Sequence[Group]) -> Estimate:
    values = [group.quantities["slope"].value for group in groups]
    replicates = np.stack([group.quantities["slope"].replicates for group in groups])
    extremes = (max(values), min(values))
    found = ratio_of(replicates.max(axis=0), replicates.min(axis=0), extremes, all(group.enough for group in groups))
    return found if found.low is None else replace(found, low=max(1.0, found.low))


def _between_over_within(coefficients: Coefficients, name: str) -> Estimate:
    """Standard deviation over drafters of their mean, by the root mean square of theirs over their workloads."""
    grouped = [[g for g in coefficients.by_dataset if g.drafter == drafter] for drafter in coefficients.distinct]
    grouped = [groups for groups in grouped if len(groups) > 1]
    if len(grouped) < 2:
        return Estimate()
    # the value of all labels goes first, as if it were one more replicate
    columns = [
        np.stack([np.append(g.quantities[name].value, g.quantities[name].replicates) for g in groups])
        for groups in grouped
    ]
    between = np.std([column.mean(axis=0) for column in columns], axis=0, ddof=1)
    within = np.sqrt(np.mean([column.var(axis=0, ddof=1) for column in columns], axis=0))
    enough = all(group.enough for groups in grouped for group in groups)
    return ratio_of(between[1:], within[1:], (float(between[0]), float(within[0])), enough)
