"""Blocks of the DFlash family: what the reference gives for some anchors, and what ours gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from adaverify.drafters.models import DFlashDraftModel
from drafters.models.reference import HIDDEN, TAPS, VOCAB, Outputs, Store, bidirectional, layer_fields

ROWS = 15
BLOCK_SIZE = 4
ANCHORS = (0, 2, 5, 9)
MASK_TOKEN = 21
OPTIONS: dict[str, Any] = {
    "block_size": BLOCK_SIZE,
    "mask_token_id": MASK_TOKEN,
    "aux_hidden_state_layer_ids": list(TAPS),
}


@dataclass(frozen=True)
class Case:
    """A text, its hidden states, and the rows of each block."""

    tokens: Tensor
    taps: Tensor

    def previous(self, sample_from_anchor: bool) -> Tensor:
        """The true token before each row's draft: [blocks, rows]."""
        shifts = [k if sample_from_anchor else max(k - 1, 0) for k in range(BLOCK_SIZE)]
        return torch.stack([self.tokens[[a + s for s in shifts]] for a in ANCHORS])


def random_case() -> Case:
    torch.manual_seed(1)
    return Case(torch.randint(VOCAB, (ROWS,)), torch.randn(ROWS, len(TAPS) * HIDDEN))


def sliding_layers(window: int = 3) -> dict[str, Any]:
    types = ["sliding_attention", "full_attention"]
    return layer_fields(num_layers=2, use_sliding_window=True, sliding_window=window, layer_types=types)


@torch.no_grad()
def theirs(model: nn.Module, case: Case) -> tuple[Tensor, Tensor]:
    """Logits [blocks, rows, Vd] and normed hidden states [blocks, rows, H] of the training forward."""
    from speculators.losses import resolve_loss_config

    # the fused losses need Triton
    tv = resolve_loss_config("tv", "eager")["tv"][0]
    logits, hidden = Outputs(model.lm_head), Outputs(model.norm)
    chosen = torch.zeros(1, ROWS)
    chosen[0, list(ANCHORS)] = 1
    model(
        hidden_states=case.taps[None],
        input_ids=case.tokens[None],
        loss_mask=chosen,
        verifier_last_hidden_states=torch.randn(1, ROWS, HIDDEN),
        document_ids=torch.zeros(1, ROWS, dtype=torch.long),
        max_anchors=len(ANCHORS),
        loss_config=resolve_loss_config("kl_div", "eager"),
        **({} if model.config.speculators_model_type == "dflash" else {"tv_loss_fn": tv}),
    )
    shape = (len(ANCHORS), BLOCK_SIZE, -1)
    return logits.all[0].view(shape), hidden.all[0].view(shape)


@torch.no_grad()
def ours(model: DFlashDraftModel, case: Case, rows: int = BLOCK_SIZE) -> tuple[Tensor, Tensor]:
    """The same from the draft model over a paged store, all blocks in one pass."""
    store = Store(model, len(ANCHORS))
    for i, anchor in enumerate(ANCHORS):
        positions = torch.arange(anchor)[None]
        store.write_context(i, model.context(model.project(case.taps[:anchor]), positions))
    blocks = [[int(case.tokens[a]), *[MASK_TOKEN] * (rows - 1)] for a in ANCHORS]
    batch = store.pack(blocks, ANCHORS)
    context = bidirectional(batch.context)
    hidden = model(batch.token_ids, batch.positions, context, rows_per_block=rows)
    assert context.total is not None
    assert context.total.isfinite().all()
    return model.head(hidden).view(len(ANCHORS), rows, -1), hidden.view(len(ANCHORS), rows, -1)
