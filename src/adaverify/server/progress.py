"""A line in the log every few seconds while requests are served, for those who have no dashboard."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from adaverify.engine.stats import EngineStats

if TYPE_CHECKING:
    from adaverify.engine.async_engine import AsyncEngine

INTERVAL_SECONDS = 10.0
logger = logging.getLogger(__name__)


async def report_progress(engine: AsyncEngine, interval: float = INTERVAL_SECONDS) -> None:
    """Log what has been served every ``interval`` seconds in which there was something; runs until cancelled."""
    before = engine.stats()
    while True:
        await asyncio.sleep(interval)
        now = engine.stats()
        if now.num_steps > before.num_steps:
            logger.info(progress_line(before, now, interval))
        before = now


def progress_line(before: EngineStats, now: EngineStats, seconds: float) -> str:
    """Load, throughput and, with speculation, drafts per request-round between two snapshots.

    Examples
    --------
    >>> before = EngineStats()
    >>> progress_line(before, EngineStats(num_requests_running=2, generation_tokens=300), 10.0)
    '2 running, 0 waiting, KV 0% used, 30.0 output tokens/s'
    """
    rate = (now.generation_tokens - before.generation_tokens) / seconds
    line = f"{now.num_requests_running} running, {now.num_requests_waiting} waiting, "
    line += f"KV {now.kv_cache_usage:.0%} used, {rate:.1f} output tokens/s"
    rounds = now.num_draft_rounds - before.num_draft_rounds
    if rounds:
        drafted, admitted, accepted = (
            (sum(getattr(now, name)) - sum(getattr(before, name))) / rounds
            for name in ("drafted", "admitted", "accepted")
        )
        line += f"; per round {drafted:.1f} drafted, {admitted:.1f} verified, {accepted:.1f} accepted"
    return line
