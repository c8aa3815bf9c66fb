"""The engine: one decode step in order, over any number of requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from adaverify.config import EngineConfig
from adaverify.engine.block_pool import BlockPool
from adaverify.engine.estimator_state import save_state
from adaverify.engine.output import CompletionStream
from adaverify.engine.records import StepObserver, StepRecord
from adaverify.engine.request import Request
from adaverify.engine.rows import (
    admitted_drafts,
    drafts_within_text,
    packed_segments,
    sample_requests,
    sick_requests,
    telling_decodes,
)
from adaverify.engine.runner import ModelRunner
from adaverify.engine.scheduler import Scheduler, StepPlan
from adaverify.engine.speculation import Round, Speculation
from adaverify.engine.stats import EngineStats, cost_stats
from adaverify.engine.timing import StepTimer, backlog_tokens, step_size
from adaverify.engine.validation import check_request, resolve_bad_words
from adaverify.errors import QueueFullError
from adaverify.outputs import CompletionDelta
from adaverify.sampling.overlap import draft_overlaps
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.rng import derive_seed
from adaverify.sampling.sampler import SampleRequest, SampleResult, sample

# Steps between two writes of the estimator: what a crash may cost.
SAVE_INTERVAL = 5000


class Engine:
    """Serves requests step by step; built by :func:`adaverify.engine.factory.build_engine`.

    Parameters
    ----------
    config : EngineConfig
    tokenizer : PreTrainedTokenizerBase
    runner : ModelRunner
        The target.
    pool : BlockPool
    max_model_len : int
        Longest prompt plus output, in tokens.
    eos_token_ids : frozenset of int
    speculation : Speculation, optional
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: PreTrainedTokenizerBase,
        runner: ModelRunner,
        pool: BlockPool,
        max_model_len: int,
        eos_token_ids: frozenset[int],
        speculation: Speculation | None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.runner = runner
        self.pool = pool
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.speculation = speculation
        depth = speculation.num_speculative_tokens if speculation else 0
        self.scheduler = Scheduler(pool, config.max_num_seqs, config.max_num_batched_tokens, depth)
        self._streams: dict[Request, CompletionStream] = {}
        self.observer: StepObserver | None = None
        self._seeds = np.random.default_rng(config.seed)
        self._stats = EngineStats.start(depth)
        # without drafts there is nothing to reject, and a drafter with coupled verification may come and go
        self.coupled = speculation is None or speculation.coupled
        self.timer = StepTimer(speculation.learn_costs if speculation else None)

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._streams)

    def add_request(
        self, prompt: str | list[int], params: SamplingParams, request_id: str, dataset: str = ""
    ) -> list[int]:
        """Queue a request, as ``params.n`` completions; returns the prompt's tokens.

        ``dataset`` says in recorded traces where the prompt comes from.

        Raises
        ------
        InvalidRequestError
            The request cannot be served as asked.
        QueueFullError
            More requests are waiting than the queue holds.
        """
        token_ids = list(prompt) if isinstance(prompt, list) else self.tokenizer(prompt)["input_ids"]
        params = resolve_bad_words(params, self.tokenizer)
        check_request(token_ids, params, self.max_model_len, self.runner.vocab_size)
        if len(self.scheduler.waiting) + params.n > self.config.max_waiting:
            raise QueueFullError(f"{len(self.scheduler.waiting)} requests are waiting; try again later")
        seed = params.seed if params.seed is not None else int(self._seeds.integers(2**63))
        room = self.max_model_len - len(token_ids)
        max_len = len(token_ids) + (room if params.max_tokens is None else min(params.max_tokens, room))
        for index in range(params.n):
            request = Request(
                request_id=request_id,
                index=index,
                params=params,
                token_ids=list(token_ids),
                num_prompt_tokens=len(token_ids),
                seed=derive_seed(seed, index, token_ids),
                eos_token_ids=self.eos_token_ids,
                max_len=max_len,
                dataset=dataset,
            )
            self._streams[request] = CompletionStream(request, self.tokenizer)
            self.scheduler.add(request)
        self._stats.prompt_tokens += len(token_ids)
        return token_ids

    def abort(self, request_id: str) -> None:
        """End all completions of a request now and free their blocks."""
        for request in [request for request in self._streams if request.request_id == request_id]:
            request.finish_reason = "abort"
            self._finish(request)
        self._rest()

    def step(self) -> list[CompletionDelta]:
        """Compute one step; returns what it added to each completion.

        The order is that of ``docs/architecture.md``: schedule, budget, draft, admit, run the target, sample and
        verify, observe, hand out.
        """
        before = dict(self._stats.seconds)
        self.timer.begin(before)
        with self._timed("schedule"):
            plan = self.scheduler.schedule()
            if plan.is_empty:
                return []
        backlog = backlog_tokens(plan)
        current = self._begin_round(plan)
        with self._timed("schedule"):
            admitted = current.admitted.tolist() if current else [0] * len(plan.decodes)
            size = step_size(plan, sum(admitted), current.block.depth if current else 0, backlog)
            self.timer.drafted(size, self._stats.seconds)
            drafts = admitted_drafts(current, admitted)
            segments = packed_segments(plan, drafts)
        with self._timed("target"):
            output = self.runner.forward(segments)
        if self.speculation is not None:
            with self._timed("draft"):
                self.speculation.drafter.absorb(output, plan.decodes, admitted, plan.chunks)
        with self._timed("sample"):
            sampling = plan.decodes + [chunk.request for chunk in plan.chunks if chunk.samples]
            requests = sample_requests(sampling, drafts, current)
        overlaps = self._overlaps(output.logits, requests, current)
        with self._timed("sample"):
            results = sample(output.logits, requests, current.block.laws if current else None, self.coupled)
        accepted = [result.num_accepted for result in results[: len(plan.decodes)]]
        telling = telling_decodes(plan, results)
        within = drafts_within_text(plan, drafts, accepted)
        self._record(plan, current, accepted, within, telling, overlaps, before)
        with self._timed("policy"):
            self._observe(current, telling, admitted, accepted, within)
        with self._timed("output"):
            sick = sick_requests(plan, segments, accepted, output.finite.tolist())
            deltas = self._advance(plan, dict(zip(sampling, results, strict=True)), sick)
        self.timer.end(self._stats.seconds)
        self._rest()
        return deltas

    def save_estimator(self) -> None:
        """Write what the estimator has learned, if the configuration names a file for it."""
        speculative = self.config.speculative_config
        if self.speculation is not None and speculative is not None and speculative.estimator_state is not None:
            save_state(speculative.estimator_state, self.speculation.estimator, self.config)

    def stats(self) -> EngineStats:
        """Snapshot of the counters."""
        speculation, scheduler = self.speculation, self.scheduler
        return replace(
            self._stats.copy(),
            num_requests_running=len(scheduler.running),
            num_requests_waiting=len(scheduler.waiting),
            kv_cache_usage=self.pool.usage,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            num_preemptions=scheduler.num_preemptions,
            estimator_slope=float(speculation.estimator.slope) if speculation else None,
            estimator_intercepts=speculation.estimator.intercepts.tolist() if speculation else None,
            **cost_stats(speculation.live_costs if speculation else None),
        )

    def _begin_round(self, plan: StepPlan) -> Round | None:
        if self.speculation is None:
            return None
        with self._timed("policy"):
            self.speculation.start_requests(plan.started)
            choice = self.speculation.choose(plan)
        with self._timed("draft"):
            block = self.speculation.draft(plan, choice)
        if any(plan.num_drafts):
            self._stats.add_draft_depth(block.depth, choice.depth)
        with self._timed("policy"):
            return self.speculation.admit(plan, block, choice.budget)

    def _overlaps(self, logits: Tensor, requests: list[SampleRequest], current: Round | None) -> Tensor | None:
        if self.observer is None or not self.observer.wants_overlaps or current is None:
            return None
        with self._timed("record"):
            depth = current.features.shape[1]
            return draft_overlaps(logits, requests, current.block.laws, depth, self.coupled)[: len(current.admitted)]

    def _record(
        self,
        plan: StepPlan,
        current: Round | None,
        accepted: list[int],
        within: list[int],
        telling: list[bool],
        overlaps: Tensor | None,
        before: dict[str, float],
    ) -> None:
        """Tell the observer of the step; ``before`` is the account of time from before it."""
        if self.observer is None or current is None:
            return
        assert self.speculation is not None
        seconds = {part: spent - before[part] for part, spent in self._stats.seconds.items()}
        with self._timed("record"):
            self.observer.record(
                StepRecord(
                    self._stats.num_steps,
                    plan,
                    current,
                    accepted,
                    within,
                    telling,
                    overlaps,
                    self.speculation.estimator,
                    seconds,
                )
            )

    def _observe(
        self,
        current: Round | None,
        telling: list[bool],
        admitted: list[int],
        accepted: list[int],
        within: list[int],
    ) -> None:
        """Let the estimator learn from the round, and count it."""
        if self.speculation is None:
            return
        if current is not None:
            self.speculation.observe(current, accepted, telling, within)
            self._stats.add_round(
                drafted=current.num_drafts.cpu().numpy(),
                admitted=np.array(admitted),
                accepted=np.array(accepted),
                predictions=current.confidences.cpu().numpy(),
            )
            self._stats.draft_budget = int(current.budget)
        self.speculation.end_step()

    def _advance(
        self, plan: StepPlan, results: dict[Request, SampleResult], sick: list[Request]
    ) -> list[CompletionDelta]:
        """Give each request its new tokens, end those that are done, and collect the deltas."""
        for chunk in plan.chunks:
            chunk.request.num_computed = chunk.end
        failed = dict.fromkeys(sick, "the target's keys or values are not finite (NaN or infinity)")
        failed |= {request: result.error for request, result in results.items() if result.error is not None}
        deltas = []
        for request in dict.fromkeys([*results, *failed]):
            stream = self._streams[request]
            if request in failed:
                request.tainted = True
                stream.fail(failed[request])
            else:
                result = results[request]
                counted = stream.feed(result)
                request.append(counted, result.num_accepted)
                self._stats.generation_tokens += len(counted)
            deltas.append(stream.delta())
            if request.finish_reason is not None:
                self._finish(request)
        for request in self.scheduler.running:
            request.remember_blocks(self.pool, self._num_valid(request))
        self._stats.num_steps += 1
        if self._stats.num_steps % SAVE_INTERVAL == 0:
            self.save_estimator()
        return deltas

    def _num_valid(self, request: Request) -> int:
        """Tokens of which both stores hold all that need not be computed again."""
        if self.speculation is None or self.speculation.drafter.rereads:
            return request.num_computed
        return min(request.num_computed, request.num_draft_computed)

    def _rest(self) -> None:
        """Stop the clock if there is nothing to do."""
        if not self.has_unfinished:
            self.timer.stop()

    def _finish(self, request: Request) -> None:
        request.remember_blocks(self.pool, self._num_valid(request))
        self.scheduler.finish(request)
        del self._streams[request]
        reason = request.finish_reason or "abort"
        self._stats.finished[reason] = self._stats.finished.get(reason, 0) + 1

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Add the time spent inside to the step's account."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._stats.seconds[part] += time.perf_counter() - start
