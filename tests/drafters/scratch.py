"""Drafts of the trained methods from scratch: fresh stores, the target run over the whole text every time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from tests.drafters.support import Call
from tests.support import Pair
from torch import Tensor
from transformers import AutoModelForCausalLM

from adaverify.drafters.models import (
    DFlash2DraftModel,
    DSparkDraftModel,
    Eagle3DraftModel,
    MtpDraftModel,
    load_draft_model,
)
from adaverify.engine.batch import PackedBatch, Segment, pack
from adaverify.engine.kv_cache import PagedKV
from adaverify.policy.features import log_odds_of_max
from adaverify.sampling.processors import SamplingTensors, draft_temperature, filtered_probabilities

CPU = torch.device("cpu")
# one block for a whole text, unlike the engine's
LONGEST = 96
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


@dataclass
class Expected:
    """What a block of K drafts should have been: logits [K, W], their tokens [K, W], log-odds of the head [K]."""

    logits: Tensor
    columns: Tensor
    confidence: Tensor | None = None


class Scratch:
    """A target with its own attention, and a draft model that meets each text for the first time."""

    def __init__(self, pair: Pair) -> None:
        self.target = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
        self.model = load_draft_model(pair.drafter, self.target, torch.float32, CPU)
        self.target.model.norm.register_forward_pre_hook(lambda _module, args: setattr(self, "last", args[0][0]))

    def states(self, text: list[int]) -> Tensor:
        """Hidden states [T, n * H] at the taps; transformers hands the last one out after the norm only."""
        residuals = self.target(torch.tensor([text]), output_hidden_states=True).hidden_states
        layers = [state[0] for state in residuals[:-1]] + [self.last]
        return torch.cat([layers[i] for i in self.model.config.tap_layer_ids], dim=-1)

    @torch.inference_mode()
    def block(self, text: list[int], drafts: list[int], depth: int, room: int) -> Expected:
        """The laws of ``drafts`` after ``text``, drafted with others to ``depth`` in blocks for ``room`` tokens."""
        projected = self.model.project(self.states(text)[:-1])
        kv = PagedKV(self.model.kv_shapes(), 2, LONGEST, torch.float32, CPU)
        if isinstance(self.model, Eagle3DraftModel | MtpDraftModel):
            return self._chain(text, drafts, projected, kv)
        for layer, (key, value) in enumerate(self.model.context(projected, torch.arange(len(text) - 1)[None])):
            kv.layer(layer).write(LONGEST + torch.arange(len(text) - 1), key, value)
        rows = depth + (not self.model.config.sample_from_anchor)
        batch = self._pack([text[-1], *[self.model.config.mask_token_id] * (rows - 1)], len(text) - 1, kv)
        last = min(len(text) - 1 + rows, room) - 1
        groups = [replace(g, query_positions=torch.full_like(g.query_positions, last)) for g in batch.context.groups]
        context = replace(batch.context, groups=groups)
        hidden = self.model(batch.token_ids, batch.positions, context, rows_per_block=rows)[0, rows - depth :]
        return self._draw(text, drafts, hidden, self.model.head(hidden))

    def _chain(self, text: list[int], drafts: list[int], projected: Tensor, kv: PagedKV) -> Expected:
        batch = self._pack(text[1:], 1, kv, first_key=1)
        hidden = self.model(batch.token_ids, projected[None], batch.positions, batch.context)[:, -1:]
        logits = [self.model.head(hidden)[0]]
        for i, draft in enumerate(drafts[:-1]):
            batch = self._pack([draft], len(text) + i, kv, first_key=1)
            hidden = self.model(batch.token_ids, hidden, batch.positions, batch.context)
            logits.append(self.model.head(hidden)[0])
        return Expected(torch.cat(logits), self._columns(len(drafts)))

    def _draw(self, text: list[int], drafts: list[int], hidden: Tensor, logits: Tensor) -> Expected:
        """Add what each draft says about the next."""
        logits, columns = list(logits[: len(drafts)].split(1)), self._columns(len(drafts))
        confidence, state = [], None
        for i, previous in enumerate(torch.tensor([text[-1], *drafts[:-1]]).split(1)):
            if isinstance(self.model, DFlash2DraftModel):
                chosen, logits[i] = self.model.select(logits[i], hidden[i : i + 1], previous)
                columns = chosen if i == 0 else torch.cat([columns, chosen])
            elif isinstance(self.model, DSparkDraftModel):
                bias, state = self.model.markov_bias(previous, hidden[i : i + 1], state)
                logits[i] = logits[i] + bias
                if self.model.confidence_head is not None:
                    confidence.append(self.model.confidence(hidden[i : i + 1], previous))
        return Expected(torch.cat(logits), columns, torch.cat(confidence) if confidence else None)

    def _columns(self, rows: int) -> Tensor:
        ids = self.model.target_token_ids
        return (torch.arange(self.model.config.vocab_size) if ids is None else ids).expand(rows, -1)

    def _pack(self, tokens: list[int], start: int, kv: PagedKV, first_key: int = 0) -> PackedBatch:
        return pack([Segment(tokens, start, [1], 1)], kv, CPU, max_padded_query=1, first_key=first_key)


def assert_from_scratch(scratch: Scratch, calls: list[Call], greedy: bool = False) -> int:
    """Every usable draft of ``calls`` has the feature, the law and the confidence of a pass from scratch.

    Returns
    -------
    int
        Drafts looked at.
    """
    seen = 0
    for call in calls:
        block = call.block
        for row, (text, params, count) in enumerate(zip(call.texts, call.params, call.num_drafts, strict=True)):
            if not count:
                continue
            seen += count
            drafts = block.token_ids[row, :count].tolist()
            expected = scratch.block(text, drafts, block.depth, call.room[row])
            each = SamplingTensors.from_params([params] * count, [0] * count, CPU)
            features = log_odds_of_max(expected.logits, each.temperature)
            torch.testing.assert_close(block.features[row, :count], features, **CLOSE)
            assert (block.confidence is None) == (expected.confidence is None)
            if expected.confidence is not None:
                torch.testing.assert_close(block.confidence[row, :count], expected.confidence, **CLOSE)
            if greedy or params.is_greedy:
                likeliest = expected.logits.argmax(-1, keepdim=True)
                assert drafts == expected.columns.gather(-1, likeliest)[:, 0].tolist()
            else:
                colder = draft_temperature(each.temperature)
                q = filtered_probabilities(expected.logits, colder, each.top_k, each.top_p, each.min_p)
                laws = slice(block.law_start(row), block.law_start(row) + count)
                torch.testing.assert_close(block.laws.q[laws], q, rtol=1e-3, atol=1e-4)
                if block.laws.columns is not None:
                    columns = block.laws.columns if block.laws.columns.ndim == 1 else block.laws.columns[laws]
                    assert columns.expand_as(q).tolist() == expected.columns.tolist()
                kept = (expected.columns == torch.tensor(drafts)[:, None]) & (q > 0)
                assert kept.any(-1).all(), "a draft that its law excludes"
    return seen
