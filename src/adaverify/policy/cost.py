"""What a step costs: measured curves, and the tables the budget reads."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaverify.errors import ConfigError


@dataclass(frozen=True)
class CostCurve:
    """Measured cost of one part of a step, by size.

    Between measured sizes the curve is interpolated, beyond the last one it goes on with the last slope, and it
    never falls: a running maximum removes what measurement noise would make cheaper.

    Attributes
    ----------
    sizes : tuple of int
        Measured sizes, increasing, from 1: requests for a draft curve, packed tokens for a verify curve.
    costs : tuple of float
        Milliseconds at each size.
    step_up_to : int
        Up to this size a size costs what the next measured size costs, as with captured CUDA graphs, which pad.

    Raises
    ------
    ConfigError
        The curve is empty, or holds a size or a cost that is not finite and positive.
    """

    sizes: tuple[int, ...]
    costs: tuple[float, ...]
    step_up_to: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "costs", tuple(self.costs))
        if not self.sizes or len(self.sizes) != len(self.costs):
            raise ConfigError(
                f"cost curve has {len(self.sizes)} sizes and {len(self.costs)} costs; it needs one cost for each "
                "size and at least one size"
            )
        if any(size < 1 or size != int(size) for size in self.sizes):
            raise ConfigError(f"cost curve: sizes must be whole numbers from 1, got {list(self.sizes)}")
        if any(later <= earlier for earlier, later in zip(self.sizes, self.sizes[1:], strict=False)):
            raise ConfigError(f"cost curve: sizes must increase, got {list(self.sizes)}")
        if not all(math.isfinite(cost) and cost > 0 for cost in self.costs):
            raise ConfigError(
                f"cost curve: costs must be finite and positive milliseconds, got {list(self.costs)}; measure again"
            )
        if self.step_up_to < 0:
            raise ConfigError(f"cost curve: step_up_to must not be negative, got {self.step_up_to}")

    @classmethod
    def from_samples(cls, samples: Iterable[tuple[int, float]], step_up_to: int = 0) -> CostCurve:
        """Curve through the median cost of each size.

        Parameters
        ----------
        samples : iterable of (size, milliseconds)
            In any order, with repetitions.
        step_up_to : int

        Raises
        ------
        ConfigError
            There is no sample, or one is not finite and positive.
        """
        by_size: defaultdict[int, list[float]] = defaultdict(list)
        for size, milliseconds in samples:
            # Checked one by one: a median hides a bad sample.
            if not (math.isfinite(milliseconds) and milliseconds > 0):
                raise ConfigError(f"cost sample at size {size} is {milliseconds} ms; it must be finite and positive")
            by_size[size].append(milliseconds)
        sizes = sorted(by_size)
        return cls(tuple(sizes), tuple(float(median(by_size[size])) for size in sizes), step_up_to)

    def table(self, limit: int) -> Tensor:
        """Cost of every size from 0 to ``limit``.

        Returns
        -------
        Tensor, shape [limit + 1], float64
            Milliseconds, non-decreasing; size 0 costs what the smallest measured size costs.
        """
        measured = np.asarray(self.sizes, dtype=np.float64)
        costs = np.maximum.accumulate(np.asarray(self.costs, dtype=np.float64))
        sizes = np.arange(limit + 1, dtype=np.float64)
        padded = costs[np.minimum(np.searchsorted(measured, sizes), len(costs) - 1)]
        # Leaving the captured sizes is a jump, so nothing is interpolated across it.
        above = measured > self.step_up_to
        smooth = np.interp(sizes, measured[above], costs[above]) if above.any() else padded
        values = np.where(sizes <= self.step_up_to, padded, smooth)
        if len(costs) > 1:
            slope = (costs[-1] - costs[-2]) / (measured[-1] - measured[-2])
            values = np.where(sizes > measured[-1], costs[-1] + slope * (sizes - measured[-1]), values)
        return torch.from_numpy(values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: ``sizes``, ``costs`` (milliseconds), ``step_up_to``."""
        return {"sizes": list(self.sizes), "costs": list(self.costs), "step_up_to": self.step_up_to}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CostCurve:
        """Read what :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            A key is missing or unknown, a value has the wrong type, or the curve is refused.
        """
        _check_keys("cost curve", values, required={"sizes", "costs"}, optional={"step_up_to"})
        try:
            sizes = tuple(int(size) for size in values["sizes"])
            costs = tuple(float(cost) for cost in values["costs"])
            return cls(sizes, costs, int(values.get("step_up_to", 0)))
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"cost curve: sizes and costs must be lists of numbers ({error})") from error


class MaterializedCosts(NamedTuple):
    """Cost tables on the device, for a budget chosen without host sync.

    Attributes
    ----------
    draft : Tensor, shape [K + 1, max_requests + 1], float64
        Milliseconds to draft to each depth (row 0: none, all 0) for each number of requests.
    verify : Tensor, shape [max_tokens + 1], float64
        Milliseconds of a target pass over each number of packed tokens.
    """

    draft: Tensor
    verify: Tensor


@dataclass(frozen=True)
class CostTable:
    """What one round costs: drafting by number of requests and depth, verification by packed tokens.

    Attributes
    ----------
    verify : CostCurve
    draft : CostCurve, optional
        A whole block of K drafts; None where drafting costs nothing, as with n-gram lookup.
    draft_first : CostCurve, optional
        The first draft alone; depths between are interpolated. None: a block costs the same whatever its depth, or
        its parts are not known.
    """

    verify: CostCurve
    draft: CostCurve | None = None
    draft_first: CostCurve | None = None

    def __post_init__(self) -> None:
        if self.draft_first is not None and self.draft is None:
            raise ConfigError("cost table: draft_first without draft; give what the whole block costs, too")

    def materialize(
        self,
        max_requests: int,
        max_tokens: int,
        device: torch.device | str = "cpu",
        num_speculative_tokens: int = 1,
    ) -> MaterializedCosts:
        """Tables up to the largest batch the engine can pack, and for every depth up to K."""
        draft = self._draft_table(max_requests, num_speculative_tokens)
        return MaterializedCosts(draft.to(device), self.verify.table(max_tokens).to(device))

    def with_equal_passes(self, num_speculative_tokens: int) -> CostTable:
        """The same with K passes of equal cost, where the first one's is not known."""
        if self.draft is None or self.draft_first is not None:
            return self
        costs = tuple(cost / num_speculative_tokens for cost in self.draft.costs)
        return replace(self, draft_first=CostCurve(self.draft.sizes, costs, self.draft.step_up_to))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: ``draft`` (or null), ``verify``, and ``draft_first`` if there is one."""
        draft = None if self.draft is None else self.draft.to_dict()
        values = {"draft": draft, "verify": self.verify.to_dict()}
        return values if self.draft_first is None else values | {"draft_first": self.draft_first.to_dict()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CostTable:
        """Read what :meth:`to_dict` wrote; tables written before there was a ``draft_first`` have none.

        Raises
        ------
        ConfigError
            As :meth:`CostCurve.from_dict`.
        """
        _check_keys("cost table", values, required={"verify"}, optional={"draft", "draft_first"})
        draft, first = (
            None if values.get(name) is None else CostCurve.from_dict(values[name]) for name in ("draft", "draft_first")
        )
        return cls(CostCurve.from_dict(values["verify"]), draft, first)

    def _draft_table(self, max_requests: int, K: int) -> Tensor:
        """Milliseconds [K + 1, max_requests + 1]; not falling with depth."""
        depths = torch.arange(K + 1, dtype=torch.float64)[:, None]
        if self.draft is None:
            return torch.zeros(K + 1, max_requests + 1, dtype=torch.float64)
        block = self.draft.table(max_requests)
        first = block if self.draft_first is None else self.draft_first.table(max_requests).minimum(block)
        rows = first + (block - first) * (depths - 1) / max(1, K - 1) if K > 1 else block.expand(2, -1)
        return torch.where(depths > 0, rows, 0.0)


def _check_keys(what: str, values: Any, required: set[str], optional: set[str]) -> None:
    if not isinstance(values, dict):
        raise ConfigError(f"{what} must be a mapping with {sorted(required)}, got {type(values).__name__}")
    missing, unknown = required - values.keys(), values.keys() - required - optional
    if missing or unknown:
        raise ConfigError(f"{what}: missing {sorted(missing)}, unknown {sorted(unknown, key=str)}")
