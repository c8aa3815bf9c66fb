"""The scenarios, by name."""

from __future__ import annotations

from collections.abc import Sequence

from adaverify.errors import ConfigError
from adaverify.lab.scenarios.law import ORDINARY, Law
from adaverify.lab.scenarios.scenario import Phase, Scenario, Tenant
from adaverify.policy.cost import CostCurve, CostTable

_SIZES = (1, 2, 4, 8, *range(16, 513, 16))
_MILLISECONDS = tuple(20.0 + 0.01 * size + 0.14 * max(0, size - 64) for size in _SIZES)
_DRAFT = CostCurve((1, 64), (1.5, 3.0))

# A pass that is bound by memory up to 64 tokens and by arithmetic beyond, padded to captured sizes.
COSTS = CostTable(CostCurve(_SIZES, _MILLISECONDS, step_up_to=512), _DRAFT)
# A profile of short contexts and of the bare forward: a fifth too dear for few tokens, 30% too cheap for many.
_FACTORS = tuple(1.2 - 0.5 * min(1.0, size / 256) for size in _SIZES)
WRONG_COSTS = CostTable(
    CostCurve(_SIZES, tuple(c * f for c, f in zip(_MILLISECONDS, _FACTORS, strict=True)), step_up_to=512), _DRAFT
)

# A mixture of experts: each further token of a small pass wakes experts that no other has.
EXPERT_COSTS = CostTable(CostCurve((1, 2, 4, 8), (10.0, 12.0, 15.5, 21.0), step_up_to=8), CostCurve((1,), (1.5,)))

# Code, copied text: the drafter is sure and right.
EASY = Law(intercept=0.9, mean=4.0)
# Prose at high temperature: less sure, and less often right than it is sure.
HARD = Law(slope=0.6, intercept=-1.3, mean=1.5)
# Good for two drafts and no more, as from a drafter that was trained on no more.
SHORT_SIGHTED = Law(cliff=-5.0)
# A loop of repetitions: sharp distributions.
_LOOP = {"mean": 6.0, "deviation": 1.5, "mean_deeper": 0.0}

_SCENARIOS = (
    Scenario(
        "all-accepted",
        "8 refits in which every draft is accepted, as in a loop of repetitions, then ordinary traffic.",
        (
            Phase("all accepted", 800, Law(chance=1.0, **_LOOP), measured=False),
            Phase("ordinary", 1100, ORDINARY),
        ),
        COSTS,
        knows_q_before_draw=True,
    ),
    Scenario(
        "nearly-all-accepted",
        "8 refits in which 99% of drafts are accepted, then ordinary traffic.",
        (
            Phase("99% accepted", 800, Law(chance=0.99, **_LOOP), measured=False),
            Phase("ordinary", 1100, ORDINARY),
        ),
        COSTS,
        knows_q_before_draw=True,
    ),
    Scenario(
        "non-finite",
        "A tenth of the requests have, in three rounds of ten, a draft whose feature is nan, inf or -inf.",
        (Phase("ordinary", 800, ORDINARY),),
        COSTS,
        tenants=(Tenant(0.9), Tenant(0.1, broken=0.3)),
    ),
    Scenario(
        "mixed-greedy",
        "Half of the requests are greedy, with coefficients of their own: .648 and -.551 against .501 and -.137.",
        (Phase("mixed", 800, ORDINARY),),
        COSTS,
        tenants=(Tenant(0.5), Tenant(0.5, slope=0.147, intercept=-0.414, greedy=True)),
    ),
    Scenario(
        "penalties-tenant",
        "Three requests of ten have penalties that the drafter does not know: rarely accepted, marked as not telling.",
        (Phase("ordinary", 800, ORDINARY),),
        COSTS,
        tenants=(Tenant(0.7), Tenant(0.3, intercept=-3.0, telling=False)),
    ),
    Scenario(
        "sudden-drift",
        "From easy text to hard text between two steps.",
        (Phase("easy", 400, EASY, measured=False), Phase("hard", 1100, HARD)),
        COSTS,
    ),
    Scenario(
        "slow-drift",
        "From easy text to hard text over 12 refits; each third is compared with its own offline fit.",
        (
            Phase("early", 400, EASY, until=Law.between(EASY, HARD, 1 / 3)),
            Phase("middle", 400, Law.between(EASY, HARD, 1 / 3), until=Law.between(EASY, HARD, 2 / 3)),
            Phase("late", 400, Law.between(EASY, HARD, 2 / 3), until=HARD),
        ),
        COSTS,
    ),
    Scenario(
        "burst",
        "Load jumps from 2 to 64 requests at once, all new, with answers of a few rounds: new ones keep coming.",
        (Phase("2 at once", 200, ORDINARY, seats=2, measured=False), Phase("64 at once", 1100, ORDINARY, seats=64)),
        COSTS,
        mean_rounds=5.0,
    ),
    Scenario(
        "single",
        "One request at a time, verified by a mixture of experts: few labels.",
        (Phase("ordinary", 1100, ORDINARY, seats=1),),
        EXPERT_COSTS,
    ),
    Scenario(
        "starved",
        "At 64 requests, of text in which a third draft is never right, deep drafts do not pay and get hardly a label; "
        "then the text becomes easy.",
        (Phase("short-sighted", 400, SHORT_SIGHTED, seats=64, measured=False), Phase("easy", 1100, EASY, seats=64)),
        COSTS,
    ),
    Scenario(
        "wrong-costs",
        "Decisions are made by a table that prices small passes a fifth too dear and large ones 30% too cheap.",
        (Phase("ordinary", 800, ORDINARY),),
        COSTS,
        believed=WRONG_COSTS,
    ),
)

CATALOGUE = {scenario.name: scenario for scenario in _SCENARIOS}


def choose(names: Sequence[str]) -> list[Scenario]:
    """The scenarios of these names, or every one for ``all``.

    Raises
    ------
    ConfigError
        There is no such scenario.
    """
    unknown = [name for name in names if name not in CATALOGUE and name != "all"]
    if unknown:
        raise ConfigError(f"there is no scenario {', '.join(unknown)}; choose from all, {', '.join(CATALOGUE)}")
    return list(_SCENARIOS) if "all" in names else [CATALOGUE[name] for name in dict.fromkeys(names)]
