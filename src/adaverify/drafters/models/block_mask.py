"""Attention of blocks where rows may not see the rows after them, or a sliding window bounds what they see."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from adaverify.drafters.models.config import DraftModelConfig
from adaverify.drafters.models.layers import is_sliding
from adaverify.engine.attention import PagedContext, QueryGroup


@dataclass
class BlockGroup(QueryGroup):
    """A group whose ``query_positions`` are its rows' own, the first of a request being its block's anchor.

    Attributes
    ----------
    last_keys : Tensor [R, Q], int64
        Position up to which the request has blocks; what lies beyond belongs to nobody.
    causal : bool
        Rows do not see the rows after them.
    window_from_anchor : bool
        A window of w reaches back to w positions before the anchor, for all rows; else each row sees fewer than w
        positions away, in either direction.
    """

    last_keys: Tensor | None = None
    causal: bool = False
    window_from_anchor: bool = True

    def mask(self, window: int | None, heads_per_kv: int, block_size: int, dtype: torch.dtype) -> Tensor:
        """Additive mask [R, 1, heads_per_kv * Q, L]."""
        key = (window, heads_per_kv, dtype)
        if key not in self.masks:
            keys = torch.arange(self.block_tables.shape[1] * block_size, device=self.query_positions.device)
            rows = self.query_positions[:, None, :, None]
            anchor, end = rows[:, :, :1], rows[:, :, -1:].expand_as(rows)
            allowed = (keys <= (rows if self.causal else end)) & (keys >= self.first_key)
            if self.last_keys is not None:
                allowed &= keys <= self.last_keys[:, None, :, None]
            if window is not None and self.window_from_anchor:
                allowed &= keys >= anchor - window
            elif window is not None:
                allowed &= (keys - rows).abs() < window
            mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
            self.masks[key] = mask.repeat(1, 1, heads_per_kv, 1)
        return self.masks[key]


def layer_causal(config: DraftModelConfig, layer: int) -> bool | None:
    """Whether rows of ``layer`` are kept from later ones; None: neither that nor a window bounds what they see."""
    layers = config.layer_config
    windowed = is_sliding(layers, layer) and layers.sliding_window is not None
    causal = config.causal if config.causal is not None else windowed and not config.sliding_window_non_causal
    return causal if causal or windowed else None


def block_context(paged: PagedContext, positions: Tensor, config: DraftModelConfig, causal: bool) -> PagedContext:
    """``paged`` for layers that :func:`layer_causal` gives a value for.

    Parameters
    ----------
    paged : PagedContext
    positions : Tensor [1, T], int64
        Of the packed rows.
    """
    groups: list[QueryGroup] = []
    for group in paged.groups:
        own = positions[0, group.rows]
        own = own.view(group.query_positions.shape) if group.pad is None else own[group.pad]
        kept = {f.name: getattr(group, f.name) for f in fields(group) if f.name not in ("query_positions", "masks")}
        groups.append(
            BlockGroup(
                query_positions=own,
                last_keys=group.query_positions,
                causal=causal,
                window_from_anchor=config.window_from_anchor,
                **kept,
            )
        )
    return PagedContext(kv=paged.kv, slots=paged.slots, groups=groups)
