"""What a scenario is made of: phases of time, tenants that share the batch, costs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from adaverify.errors import ConfigError
from adaverify.lab.scenarios.law import ORDINARY, Law
from adaverify.policy.cost import CostTable

INTERVAL = 100
"""Steps of a refit interval: the paper's, in which time is counted for every estimator."""


@dataclass(frozen=True)
class Phase:
    """Steps under one law.

    Attributes
    ----------
    name : str
    num_steps : int
        Whole refit intervals.
    law : Law
    until : Law, optional
        What the law moves to, evenly, by the end of the phase.
    seats : int
        Requests at once; those of seats that close are given up, those of seats that open are new.
    measured : bool
        Whether rates are compared here; what comes before is how the estimator got here.

    Raises
    ------
    ConfigError
        The steps are not whole intervals.
    """

    name: str
    num_steps: int
    law: Law = ORDINARY
    until: Law | None = None
    seats: int = 32
    measured: bool = True

    def __post_init__(self) -> None:
        if self.num_steps < INTERVAL or self.num_steps % INTERVAL:
            raise ConfigError(f"phase {self.name} has {self.num_steps} steps; give a multiple of {INTERVAL}")


@dataclass(frozen=True)
class Tenant:
    """Requests of one sort.

    Attributes
    ----------
    share : float
        Of all requests.
    slope, intercept : float
        What they add to the law.
    greedy, telling : bool
        As in a trace.
    broken : float
        Share of their rounds in which one draft's feature is not finite.
    """

    share: float = 1.0
    slope: float = 0.0
    intercept: float = 0.0
    greedy: bool = False
    telling: bool = True
    broken: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """What happens to an estimator.

    Attributes
    ----------
    name, what : str
    phases : tuple of Phase
    costs : CostTable
        What rounds are charged.
    believed : CostTable, optional
        What estimators decide by, where that is something else.
    tenants : tuple of Tenant
        Their shares sum to 1.
    mean_rounds : float
        Of a request; the number is geometric.
    num_speculative_tokens : int
        K.
    knows_q_before_draw : bool
        Whether the budget may look at the present block, as with DFlash.

    Raises
    ------
    ConfigError
        The last phase is not measured.
    """

    name: str
    what: str
    phases: tuple[Phase, ...]
    costs: CostTable
    believed: CostTable | None = None
    tenants: tuple[Tenant, ...] = (Tenant(),)
    mean_rounds: float = 50.0
    num_speculative_tokens: int = 7
    knows_q_before_draw: bool = False

    def __post_init__(self) -> None:
        if not self.phases[-1].measured:
            raise ConfigError(f"scenario {self.name} ends with a phase that is not measured; let it end before")

    @property
    def num_steps(self) -> int:
        """Steps of all phases, T."""
        return sum(phase.num_steps for phase in self.phases)

    @property
    def num_seats(self) -> int:
        """Seats of the fullest phase, N."""
        return max(phase.seats for phase in self.phases)

    @property
    def first_steps(self) -> list[int]:
        """The step that each phase begins with."""
        return list(accumulate((phase.num_steps for phase in self.phases[:-1]), initial=0))

    @property
    def measured(self) -> list[bool]:
        """For each refit interval, whether its phase is measured."""
        return [phase.measured for phase in self.phases for _ in range(phase.num_steps // INTERVAL)]
