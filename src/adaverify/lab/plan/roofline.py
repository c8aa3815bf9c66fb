"""Cost tables from data sheets: what a pass costs at best."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify.lab.plan.tables import SourcedCosts
from adaverify.policy.cost import CostCurve, CostTable


@dataclass(frozen=True)
class Chip:
    """An accelerator by its data sheet.

    Attributes
    ----------
    name : str
    bandwidth : float
        Bytes per second.
    flops : float
        Dense bfloat16 operations per second.
    """

    name: str
    bandwidth: float
    flops: float


@dataclass(frozen=True)
class Network:
    """What a pass reads and computes.

    Attributes
    ----------
    name : str
    params : float
        Parameters that a pass multiplies with; of an embedding it reads single rows only.
    bytes_per_param : float
    """

    name: str
    params: float
    bytes_per_param: float = 2.0


# NVIDIA's H100 SXM and AMD's Instinct MI300X data sheets, without sparsity
CHIPS = {"h100": Chip("H100 SXM", 3.35e12, 989e12), "mi300x": Chip("MI300X", 5.3e12, 1307e12)}
# 8.03e9 less the embedding of 128,256 rows of 4,096
TARGET = Network("Llama-3.1-8B, bfloat16", 7.50e9)
# one layer that reads two vectors, the projection of three states, and a head over 32,000 tokens
DRAFTER = Network("an EAGLE-3 drafter", 0.425e9)
TARGET_OVERHEAD_MS, DRAFT_OVERHEAD_MS = 1.0, 0.1
_LARGEST = 8192


def roofline(chip: Chip, network: Network, overhead_ms: float) -> CostCurve:
    """Milliseconds of a pass: ``max(weight bytes / bandwidth, 2 * params * tokens / flops) + overhead``.

    Attention, the KV cache's traffic and whatever keeps a chip from its data sheet are left out.
    """
    reading = 1e3 * network.params * network.bytes_per_param / chip.bandwidth
    a_token = 1e3 * 2 * network.params / chip.flops
    knee = int(reading / a_token)
    sizes = (1, knee, _LARGEST)
    return CostCurve(sizes, tuple(round(max(reading, a_token * size) + overhead_ms, 4) for size in sizes))


def roofline_table(name: str) -> SourcedCosts:
    """The table of one of :data:`CHIPS` with an 8B model; the one shipped is what this gives."""
    chip = CHIPS[name]
    return SourcedCosts(
        CostTable(roofline(chip, TARGET, TARGET_OVERHEAD_MS), roofline(chip, DRAFTER, DRAFT_OVERHEAD_MS)),
        name=f"{name}-8b-roofline",
        kind="roofline",
        what=f"{chip.name}, {TARGET.name}, {DRAFTER.name}",
        source=f"data sheet: {chip.bandwidth / 1e12:g} TB/s, {chip.flops / 1e12:g} TFLOP/s dense bfloat16",
        derivation="a pass takes max(weight bytes / bandwidth, 2 * parameters * tokens / FLOP/s) and an assumed "
        f"overhead of {TARGET_OVERHEAD_MS:g} ms for the target and {DRAFT_OVERHEAD_MS:g} ms for a draft pass; "
        f"{TARGET.params / 1e9:g} and {DRAFTER.params / 1e9:g} billion parameters of {TARGET.bytes_per_param:g} bytes. "
        "Attention and everything that keeps a chip from its data sheet are left out",
        per_pass=True,
    )
