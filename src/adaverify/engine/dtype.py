"""What ``dtype: auto`` means: the checkpoint's, unless this processor could only imitate it."""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger(__name__)

_INSTRUCTIONS = {torch.bfloat16: ("avx512_bf16", "amx_bf16"), torch.float16: ("avx512_fp16", "amx_fp16")}


def resolve_dtype(asked: str, checkpoint: torch.dtype | None, device: torch.device) -> torch.dtype | str:
    """The dtype to load a model in.

    An x86 processor without instructions for bfloat16 converts to float32 and back around every product: 64 rows took
    four times as long on two cores, one row twice, although float32 reads twice the bytes.

    Parameters
    ----------
    asked : str
        From the configuration; anything but ``auto`` is obeyed.
    checkpoint : torch.dtype, optional
        None if its configuration does not say; the weights decide then.
    device : torch.device
    """
    if asked != "auto":
        return asked
    if checkpoint is None or device.type != "cpu" or has_instructions(checkpoint):
        return "auto"
    name = str(checkpoint).removeprefix("torch.")
    logger.info(
        "This processor has no instructions for %s: computing in float32. --dtype %s takes half the memory, slowly.",
        name,
        name,
    )
    return torch.float32


def has_instructions(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies ``dtype``, as far as torch can tell."""
    found = _capabilities()
    if dtype not in _INSTRUCTIONS or found.get("architecture") != "x86_64":
        return True
    return any(found.get(name) for name in _INSTRUCTIONS[dtype])


def _capabilities() -> dict[str, Any]:
    """What torch knows of the processor; older versions know nothing."""
    ask = getattr(torch.cpu, "get_capabilities", None)
    return {} if ask is None else dict(ask())
