"""The log line of a busy server."""

from __future__ import annotations

import asyncio
import logging

import pytest

from adaverify.engine.stats import EngineStats
from adaverify.server.progress import progress_line, report_progress


def test_line_counts_what_happened_between_the_snapshots() -> None:
    before = EngineStats(generation_tokens=100, num_draft_rounds=10, drafted=[10, 9], admitted=[8, 3], accepted=[6, 1])
    now = EngineStats(
        num_requests_running=3,
        num_requests_waiting=1,
        kv_cache_usage=0.25,
        generation_tokens=150,
        num_draft_rounds=30,
        drafted=[30, 29],
        admitted=[26, 15],
        accepted=[20, 7],
    )
    assert progress_line(before, now, 5.0) == (
        "3 running, 1 waiting, KV 25% used, 10.0 output tokens/s; per round 2.0 drafted, 1.5 verified, 1.0 accepted"
    )
    assert "per round" not in progress_line(now, now, 5.0)


@pytest.mark.anyio
async def test_silent_while_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    class Engine:
        steps = iter([0, 0, 4, 4, 4, 4, 4, 4])

        def stats(self) -> EngineStats:
            return EngineStats(num_steps=next(self.steps, 4))

    with caplog.at_level(logging.INFO, logger="adaverify.server.progress"):
        task = asyncio.create_task(report_progress(Engine(), interval=0.001))  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        task.cancel()
    assert len(caplog.records) == 1
