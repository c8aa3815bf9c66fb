from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import pytest
from tests.support import plain_llm

from adaverify import SamplingParams
from adaverify.config import EngineConfig
from adaverify.engine.async_engine import AsyncEngine
from adaverify.errors import ConfigError, EngineDeadError, InvalidRequestError, QueueFullError, ShuttingDownError

LONG = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)


@asynccontextmanager
async def serving(llm):
    engine = AsyncEngine(llm.engine)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.shutdown(grace=0)


async def collect(engine, prompt, params, request_id):
    return [delta async for delta in engine.generate(prompt, params, request_id)]


async def until(condition) -> None:
    """Wait for what must come; only a hang takes a minute."""

    async def poll():
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 60)


def tokens(deltas) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def is_idle(llm) -> bool:
    return not llm.engine.has_unfinished and llm.engine.pool.num_free == llm.engine.pool.capacity


class Gate:
    """Holds the engine's steps until they are let through, so that nothing depends on how fast it is."""

    def __init__(self, llm) -> None:
        self.open = threading.Event()
        step = llm.engine.step

        def gated():
            self.open.wait(60)
            return step()

        llm.engine.step = gated


def test_deltas_stream_and_add_up(pair, prompts, reference, greedy):
    async def run():
        llm = pair.llm()
        async with serving(llm) as engine:
            assert engine.is_healthy
            assert engine.max_model_len == llm.engine.max_model_len
            deltas = await collect(engine, prompts[0], greedy, "a")
        assert tokens(deltas) == reference[0]
        assert len(deltas) > 1
        assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish_reason is not None
        offline = pair.llm().generate([prompts[0]], greedy)[0].outputs[0].text
        assert "".join(delta.text for delta in deltas) == offline
        assert engine.stats().generation_tokens == len(reference[0])

    asyncio.run(run())


def test_many_clients_at_once(pair, prompts, reference, greedy):
    async def run():
        llm = pair.llm(max_num_seqs=8)
        async with serving(llm) as engine:
            both = SamplingParams(n=2, temperature=1.0, max_tokens=6, seed=1, ignore_eos=True)
            several = asyncio.create_task(collect(engine, prompts[3], both, "several"))
            answers = await asyncio.gather(
                *(collect(engine, prompt, greedy, str(i)) for i, prompt in enumerate(prompts * 2))
            )
            deltas = await several
        assert [tokens(answer) for answer in answers] == reference * 2
        assert {delta.request_id for delta in deltas} == {"several"}
        for index in (0, 1):
            assert len(tokens([delta for delta in deltas if delta.index == index])) == 6
        assert is_idle(llm)

    asyncio.run(run())


def test_a_client_that_stops_reading_frees_its_blocks(pair, prompts, reference, greedy):
    async def run():
        llm = pair.llm(max_num_seqs=1)
        async with serving(llm) as engine:
            stream = engine.generate(prompts[0], LONG, "a")
            await anext(stream)
            await stream.aclose()
            assert tokens(await collect(engine, prompts[2], greedy, "c")) == reference[2]
            await until(lambda: is_idle(llm))
            assert llm.engine.stats().finished["abort"] == 1

    asyncio.run(run())


@pytest.mark.parametrize("leaving", [0, 1], ids=["running", "waiting"])
def test_cancelling_aborts_and_frees(pair, prompts, reference, greedy, leaving):
    async def run():
        llm = pair.llm(max_num_seqs=1)
        async with serving(llm) as engine:
            clients = [asyncio.create_task(collect(engine, prompts[i], LONG, str(i))) for i in range(2)]
            await until(lambda: engine.stats().num_requests_waiting == engine.stats().num_requests_running == 1)
            clients[leaving].cancel()
            outcome = await asyncio.gather(*clients, return_exceptions=True)
            assert isinstance(outcome[leaving], asyncio.CancelledError)
            assert len(tokens(outcome[1 - leaving])) == 100
            assert tokens(await collect(engine, prompts[2], greedy, "c")) == reference[2]
            await until(lambda: is_idle(llm))
            assert llm.engine.stats().finished["abort"] == 1
            assert engine.is_healthy

    asyncio.run(run())


def test_an_invalid_request_harms_no_other(pair, prompts, reference, greedy):
    async def run():
        async with serving(pair.llm()) as engine:
            good = asyncio.create_task(collect(engine, prompts[0], greedy, "good"))
            with pytest.raises(InvalidRequestError, match="prompt is empty"):
                await collect(engine, [], greedy, "bad")
            assert tokens(await good) == reference[0]
            assert engine.is_healthy

    asyncio.run(run())


def test_an_id_in_use_is_refused_and_the_first_request_goes_on(pair, prompts, reference, greedy):
    async def run():
        llm = pair.llm()
        async with serving(llm) as engine:
            first = asyncio.create_task(collect(engine, prompts[0], greedy, "a"))
            await asyncio.sleep(0)
            with pytest.raises(InvalidRequestError, match="'a'"):
                await collect(engine, prompts[1], greedy, "a")
            assert tokens(await asyncio.wait_for(first, 60)) == reference[0]
        assert is_idle(llm)

    asyncio.run(run())


def test_a_full_queue_refuses(pair, prompts, greedy):
    async def run():
        async with serving(plain_llm(pair.target, max_waiting=2)) as engine:
            with pytest.raises(QueueFullError, match="try again later"):
                await collect(engine, prompts[0], SamplingParams(n=3), "a")
            assert tokens(await collect(engine, prompts[0], greedy, "b"))

    asyncio.run(run())


def test_shutdown_finishes_what_runs_and_refuses_the_rest(pair, prompts, reference, greedy):
    async def run():
        llm = pair.llm()
        gate = Gate(llm)
        engine = AsyncEngine(llm.engine)
        await engine.start()
        running = asyncio.create_task(collect(engine, prompts[0], greedy, "a"))
        await until(lambda: llm.engine.has_unfinished)
        stopping = asyncio.create_task(engine.shutdown(grace=60))
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDownError, match="takes no new requests"):
            await collect(engine, prompts[1], greedy, "b")
        gate.open.set()
        assert tokens(await running) == reference[0]
        await stopping
        assert not engine.is_healthy
        assert is_idle(llm)

    asyncio.run(run())


def test_shutdown_without_grace_aborts(pair, prompts):
    async def run():
        llm = pair.llm(max_num_seqs=1)
        engine = AsyncEngine(llm.engine)
        await engine.start()
        clients = [asyncio.create_task(collect(engine, prompts[i], LONG, str(i))) for i in range(3)]
        await until(lambda: engine.stats().num_requests_running == 1)
        await engine.shutdown(grace=0)
        outcome = await asyncio.gather(*clients, return_exceptions=True)
        assert [type(one) for one in outcome] == [ShuttingDownError] * 3
        assert is_idle(llm)
        assert not engine.is_healthy

    asyncio.run(run())


def test_a_dead_engine_tells_everyone(pair, prompts, greedy):
    async def run():
        llm = pair.llm(max_num_seqs=2)
        gate = Gate(llm)
        engine = AsyncEngine(llm.engine)
        await engine.start()
        clients = [asyncio.create_task(collect(engine, prompts[i], greedy, str(i))) for i in range(4)]
        await until(lambda: llm.engine.has_unfinished)

        def broken(*args):
            raise RuntimeError("out of cheese")

        llm.engine.runner.forward = broken
        gate.open.set()
        outcome = await asyncio.gather(*clients, return_exceptions=True)
        assert [type(one) for one in outcome] == [EngineDeadError] * 4
        assert "out of cheese" in str(outcome[0])
        assert not engine.is_healthy
        with pytest.raises(EngineDeadError, match="out of cheese"):
            await collect(engine, prompts[0], greedy, "late")
        await engine.shutdown(grace=60)

    asyncio.run(run())


def test_an_engine_that_was_never_started_says_so(pair, prompts, greedy):
    async def run():
        engine = AsyncEngine(plain_llm(pair.target).engine)
        assert not engine.is_healthy
        with pytest.raises(EngineDeadError, match="never started"):
            await collect(engine, prompts[0], greedy, "a")

    asyncio.run(run())


# Threads that Python did not start: those of OpenMP, once a thread of ours has computed with them.
COUNT_WORKERS = """
import os, sys, threading, time
import torch
from adaverify.config import EngineConfig
from adaverify.engine.async_engine import AsyncEngine

def workers():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

speculative = {"method": "draft_model", "model": sys.argv[2], "num_speculative_tokens": 2,
               "enable_adaptive_verification": True}
config = EngineConfig(model=sys.argv[1], speculative_config=speculative, max_num_seqs=4, num_kv_blocks=64)
before = workers()
engine = AsyncEngine.from_config(config)
# they end with their thread, but not in the same instant
patience = time.monotonic() + 20
while workers() > before and time.monotonic() < patience:
    time.sleep(0.01)
after = workers()
torch.ones(1 << 20).exp()
print(before, after, workers())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_loading_leaves_no_openmp_workers_behind(pair):
    command = [sys.executable, "-c", COUNT_WORKERS, str(pair.target), str(pair.drafter)]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, after, computed = map(int, run.stdout.split())
    assert after == before
    # the count sees such workers
    assert computed == before + 1


def test_what_cannot_be_loaded_is_told_to_the_caller():
    with pytest.raises(ConfigError, match="no-such-model"):
        AsyncEngine.from_config(EngineConfig(model="no-such-model"))
