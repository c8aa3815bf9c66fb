"""The engine behind an event loop: one thread steps, requests come and deltas go without blocking."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from adaverify.config import EngineConfig
from adaverify.engine.engine import Engine
from adaverify.engine.factory import build_engine
from adaverify.engine.stats import EngineStats
from adaverify.errors import EngineDeadError, InvalidRequestError, ShuttingDownError
from adaverify.outputs import CompletionDelta
from adaverify.sampling.params import SamplingParams

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Stream:
    """Deltas of one request on their way to the event loop."""

    num_open: int
    queue: asyncio.Queue[CompletionDelta | Exception] = field(default_factory=asyncio.Queue)


@dataclass(frozen=True)
class _Arrival:
    """A request on its way to the stepping thread."""

    request_id: str
    prompt: str | list[int]
    params: SamplingParams
    dataset: str
    added: asyncio.Future[int]


class AsyncEngine:
    """Serves many clients of one :class:`Engine`.

    All calls come from one event loop. Only the stepping thread touches the engine: new and aborted requests wait
    for it between two steps, and deltas come back through the loop.

    Parameters
    ----------
    engine : Engine
    """

    def __init__(self, engine: Engine) -> None:
        self.config: EngineConfig = engine.config
        self.tokenizer: PreTrainedTokenizerBase = engine.tokenizer
        self.max_model_len = engine.max_model_len
        self._engine = engine
        self._inbox: list[_Arrival] = []
        self._aborts: list[str] = []
        self._wake = threading.Condition()
        self._streams: dict[str, _Stream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._draining = False
        self._stats = engine.stats()
        self._failure: Exception | None = None

    @property
    def engine(self) -> Engine:
        """The engine itself; nobody but the stepping thread may touch it once :meth:`start` was called."""
        return self._engine

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncEngine:
        """Load the models and build the engine; takes a while.

        In a thread that ends with it: OpenMP keeps workers for every living thread that has computed, and where
        they are more than the cores, each sleeps between two operations instead of waiting for the next. Operations
        on a few hundred kilobytes then took ten times as long in the stepping thread.

        Raises
        ------
        ConfigError
            Names what cannot be served and what to change.
        """
        # The constructor as well: its snapshot of the counters computes.
        return _in_passing_thread(lambda: cls(build_engine(config)))

    @property
    def is_healthy(self) -> bool:
        """Whether requests are being served."""
        return self._failure is None and self._thread is not None and self._thread.is_alive()

    async def start(self) -> None:
        """Start the stepping thread."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="adaverify-engine", daemon=True)
        self._thread.start()

    async def shutdown(self, grace: float) -> None:
        """Take no new requests, let those that run finish within ``grace`` seconds, abort the rest, and stop."""
        self._draining = True
        deadline = asyncio.get_running_loop().time() + grace
        while self._streams and self.is_healthy and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for request_id, stream in list(self._streams.items()):
            self._abort(request_id)
            stream.queue.put_nowait(ShuttingDownError("the server stopped before the request was finished"))
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._engine.save_estimator()

    def stats(self) -> EngineStats:
        """Snapshot of the engine's counters after the latest step."""
        return self._stats

    async def generate(
        self, prompt: str | list[int], params: SamplingParams, request_id: str, dataset: str = ""
    ) -> AsyncIterator[CompletionDelta]:
        """Deltas of one request; its ``n`` completions interleave.

        Leaving the iterator early, by closing or by cancellation, aborts the request and frees its blocks.
        ``dataset`` says in recorded traces where the prompt comes from.

        Raises
        ------
        InvalidRequestError, QueueFullError, ShuttingDownError, EngineDeadError
        """
        if self._draining:
            raise ShuttingDownError("the server is shutting down and takes no new requests")
        if self._failure is not None or self._loop is None:
            raise EngineDeadError(f"the engine has stopped: {self._failure or 'it was never started'}")
        if request_id in self._streams:
            raise InvalidRequestError(f"a request {request_id!r} is being served already; give each an id of its own")
        stream = self._streams[request_id] = _Stream(num_open=params.n)
        finished = False
        try:
            added: asyncio.Future[int] = self._loop.create_future()
            with self._wake:
                self._inbox.append(_Arrival(request_id, prompt, params, dataset, added))
                self._wake.notify()
            await added
            while stream.num_open:
                delta = await stream.queue.get()
                if isinstance(delta, Exception):
                    raise delta
                stream.num_open -= delta.finish_reason is not None
                finished = stream.num_open == 0
                yield delta
        finally:
            self._streams.pop(request_id, None)
            if not finished:
                self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        with self._wake:
            self._aborts.append(request_id)
            self._wake.notify()

    def _run(self) -> None:
        """Step while there is work, sleep while there is none."""
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self._aborts or self._stopping or self._engine.has_unfinished):
                        self._wake.wait()
                    inbox, self._inbox = self._inbox, []
                    aborts, self._aborts = self._aborts, []
                    stopping = self._stopping
                self._take_in(inbox)
                for request_id in aborts:
                    self._engine.abort(request_id)
                if stopping:
                    return
                deltas = self._engine.step()
                self._stats = self._engine.stats()
                if deltas:
                    self._call(self._deliver, deltas)
        except Exception as error:
            logger.exception("the engine's step failed")
            self._failure = error
            self._call(self._fail_all, error)

    def _take_in(self, inbox: list[_Arrival]) -> None:
        for new in inbox:
            try:
                num_tokens = len(self._engine.add_request(new.prompt, new.params, new.request_id, new.dataset))
            except Exception as error:
                self._call(_settle, new.added, error)
            else:
                self._call(_settle, new.added, num_tokens)

    def _deliver(self, deltas: list[CompletionDelta]) -> None:
        for delta in deltas:
            stream = self._streams.get(delta.request_id)
            if stream is not None:
                stream.queue.put_nowait(delta)

    def _fail_all(self, error: Exception) -> None:
        failure = EngineDeadError(f"the engine has stopped: {error}")
        for stream in self._streams.values():
            stream.queue.put_nowait(failure)
        with self._wake:
            inbox, self._inbox = self._inbox, []
        for new in inbox:
            _settle(new.added, failure)

    def _call(self, function: object, *args: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *args)  # type: ignore[arg-type]


def _in_passing_thread(build: Callable[[], AsyncEngine]) -> AsyncEngine:
    """What ``build`` returns or raises, from a thread that is gone by then."""
    done: Future[AsyncEngine] = Future()

    def run() -> None:
        try:
            done.set_result(build())
        except BaseException as error:
            done.set_exception(error)

    # A daemon, so that an interrupt need not wait for a load.
    thread = threading.Thread(target=run, name="adaverify-loading", daemon=True)
    thread.start()
    engine = done.result()
    thread.join()
    return engine


def _settle(future: asyncio.Future[int], result: int | Exception) -> None:
    """Set a future that its waiter may have given up."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
