"""What a round is charged: drafting by requests and depth, verification by packed tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from adaverify.errors import ConfigError
from adaverify.lab.replay.rounds import Rounds
from adaverify.lab.trace.trace import Floats, Ints
from adaverify.policy.cost import CostTable, MaterializedCosts


@dataclass(frozen=True)
class Prices:
    """A cost table for batches up to some size.

    Attributes
    ----------
    tables : MaterializedCosts
        As the budget reads them; where a table does not say what the first draft of a chain costs, K passes are
        taken to be equal.
    drafts_in_parallel : bool
        Whether a block is drafted in one pass and the table does not tell what its first draft costs: fewer drafts
        then cost no less.
    """

    tables: MaterializedCosts
    drafts_in_parallel: bool

    @classmethod
    def of(cls, costs: CostTable, rounds: Rounds, num_seats: int, prompt_tokens: int = 0) -> Prices:
        """Prices of every batch that ``num_seats`` seats and so many tokens of prompts can make."""
        K = rounds.num_speculative_tokens
        in_parallel = rounds.info.drafts_in_parallel and costs.draft_first is None
        by_depth = costs if in_parallel else costs.with_equal_passes(K)
        most = num_seats * (1 + K) + prompt_tokens
        return cls(by_depth.materialize(num_seats, most, num_speculative_tokens=K), in_parallel)

    @cached_property
    def draft_passes(self) -> Floats:
        """Milliseconds that each depth adds for 0 to N requests, float64 [K, N + 1]; nothing for none.

        Where a parallel drafter's price is the same at any depth, all of it is the first's.
        """
        passes: Floats = np.diff(self.tables.draft.numpy(), axis=0)
        passes[:, 0] = 0.0
        return passes

    def draft_ms(self, depth: Ints) -> Floats:
        """Milliseconds of drafting, float64 [T].

        Parameters
        ----------
        depth : int64 [T, N]
            Drafts made for each request. A request that stops early is left out of later passes; all take part in
            the one pass of a parallel drafter, however few drafts are wanted.
        """
        if self.drafts_in_parallel:
            return np.asarray(self.draft_passes[0][(depth > 0).sum(axis=1)])
        return sum(
            (self.draft_passes[i][(depth > i).sum(axis=1)] for i in range(int(depth.max(initial=0)))),
            start=np.zeros(len(depth)),
        )

    def verify_ms(self, num_tokens: Ints) -> Floats:
        """Milliseconds of the target's pass over so many packed tokens, any shape, float64."""
        return self.tables.verify.numpy()[num_tokens]


def read_costs(file: Path) -> CostTable:
    """The table that ``adaverify profile`` wrote.

    Raises
    ------
    ConfigError
        The file cannot be read or does not hold a cost table.
    """
    try:
        return CostTable.from_dict(json.loads(file.read_text()))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{file}: not a cost table ({error}); give what `adaverify profile -o FILE` wrote") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}; give what `adaverify profile -o FILE` wrote") from error


def recorded_costs(rounds: Rounds) -> tuple[CostTable, str]:
    """The cost table of the first run that has one, and the name of that run.

    Raises
    ------
    ConfigError
        No run has one.
    """
    for run in rounds.runs:
        if run.cost_table is not None:
            return run.cost_table, run.run
    raise ConfigError(
        f"run {', '.join(run.run for run in rounds.runs)} holds no cost table; measure one with "
        "`adaverify profile -o FILE` and give it as --costs FILE"
    )
