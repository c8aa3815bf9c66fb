"""Recipes of the autoregressive drafters: EAGLE-3 and MTP, trained on their own states (training-time test).

Source: EAGLE-3 (arXiv 2503.01840) for training-time test; DeepSeek-V3 (arXiv 2412.19437) for the MTP layer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, Qwen3Config

from adaverify.training.batches import PaddedBatch, pad_samples
from adaverify.training.hidden import Sample
from adaverify.training.losses import kl_divergence
from adaverify.training.recipes.base import Recipe, load_vocabulary
from adaverify.training.speculators_config import speculators_config

_STEP_DECAY = 0.9
_FIRST_STEP_SHARE = 0.55
_NEGATIVES = 1024


class ChainRecipe(Recipe):
    """Training-time test: step s reads the states of step s - 1 in place of the target's.

    The first part of a run trains the first step only, which is several times cheaper and what all others build on.
    """

    depth = 1

    def begin_step(self, share: float) -> None:
        """See :meth:`Recipe.begin_step`."""
        super().begin_step(share)
        self.depth = 1 if share < _FIRST_STEP_SHARE else self.size.num_steps

    def loss(self, samples: Sequence[Sample], max_length: int) -> tuple[Tensor, dict[str, Tensor]]:
        """See :meth:`Recipe.loss`.

        Row t has token t + 1 and the target's state at t. After s steps it has come to token t + 1 + s: it sees the
        true rows up to t, and its own path since.
        """
        batch = pad_samples(samples, max_length, self.device)
        head = self.head_rows(self.compared_tokens(samples))
        tokens, wanted_mask = batch.token_ids[:, 1:], batch.loss_mask[:, 1:].clone()
        num_rows = tokens.shape[1]
        last = batch.last[:, 1:]
        hidden = self.first_hidden(batch)
        positions = torch.arange(1, num_rows + 1, device=self.device)[None]
        diagonal = torch.eye(num_rows, dtype=torch.bool, device=self.device)
        mask = torch.ones_like(diagonal).tril()
        alive = wanted_mask.clone()
        cache = DynamicCache()
        total = torch.zeros((), device=self.device)
        metrics: dict[str, Tensor] = {}
        targets = self._targets(last, wanted_mask, head)
        for step in range(self.depth if self.model.training else self.size.num_steps):
            ahead = F.pad(tokens[:, step:], (0, step))
            state, normed = self.step(hidden, ahead, positions + step, mask[None, None], cache)
            learn = wanted_mask[:, step:]
            logits = F.linear(normed[:, : num_rows - step][learn], head)
            wanted = targets[self._rows_of(wanted_mask, step)]
            divergence = kl_divergence(logits, wanted)
            total = total + _STEP_DECAY**step * divergence.sum() / max(1, len(divergence))
            if not self.model.training:
                before = alive[:, : num_rows - step] & learn
                right = torch.zeros_like(before)
                right[learn] = logits.argmax(-1) == wanted.argmax(-1)
                alive = before & right
                metrics |= {f"right_{step}": alive.sum(), f"tried_{step}": before.sum()}
            hidden, mask = state, torch.cat([mask, diagonal], dim=1)
        return total, metrics

    def acceptance(self, sums: dict[str, float]) -> list[float]:
        """See :meth:`Recipe.acceptance`."""
        return [sums[f"right_{i}"] / max(1.0, sums[f"tried_{i}"]) for i in range(self.size.num_steps)]

    @abstractmethod
    def first_hidden(self, batch: PaddedBatch) -> Tensor:
        """States of the target as the first step reads them [B, L - 1, H]."""

    @abstractmethod
    def step(
        self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """One pass of the layer: the states that the next step reads, and those that the head reads."""

    def head_rows(self, tokens: Tensor) -> Tensor:
        """Rows of the target's head for ``tokens`` [N, H], bfloat16."""
        return self.target.head[tokens.to(self.device)].to(torch.bfloat16)

    @torch.no_grad()
    def _targets(self, last: Tensor, wanted: Tensor, head: Tensor) -> Tensor:
        """The target's logits [M, N] where a row is wanted, in row order."""
        return F.linear(self.target.final_norm(last[wanted].to(head.dtype)), head)

    @staticmethod
    def _rows_of(wanted: Tensor, step: int) -> Tensor:
        """Which of the wanted rows [M] are still ahead of some row after ``step`` steps."""
        ahead = wanted.clone()
        ahead[:, :step] = False
        return ahead[wanted]


class Eagle3Recipe(ChainRecipe):
    """EAGLE-3, each tap RMS-normed and the normed state fed back (``fc_norm``, ``norm_output``)."""

    method = "eagle3"

    def build(self) -> Any:
        """See :meth:`Recipe.build`."""
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

        config = Eagle3SpeculatorConfig(
            transformer_layer_config=self.layer_config(LlamaConfig),
            draft_vocab_size=len(self.vocabulary),
            norm_before_residual=True,
            fc_norm=True,
            norm_output=True,
            eagle_aux_hidden_state_layer_ids=list(self.taps),
            speculators_config=speculators_config("eagle3", self.target, self.size.num_steps),
        )
        model = Eagle3DraftModel(config)
        load_vocabulary(model, self.vocabulary)
        self.share_target(model, self.vocabulary)
        return model

    def first_hidden(self, batch: PaddedBatch) -> Tensor:
        """See :meth:`ChainRecipe.first_hidden`."""
        taps = batch.taps[:, :-1].float().chunk(len(self.taps), dim=-1)
        return self.model.fc(torch.cat([norm(tap) for norm, tap in zip(self.model.fc_norm, taps, strict=True)], dim=-1))

    def step(
        self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`ChainRecipe.step`."""
        both = torch.cat([self.model.embed_tokens(tokens), hidden], dim=-1)
        state = self.model.layers[0](
            both,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            position_embeddings=self.model.rotary_emb(both, positions),
        )
        state = self.model.norm(state)
        return state, state


class MTPRecipe(ChainRecipe):
    """MTP: one layer over the target's last hidden state and the next token's embedding.

    The layer is a Qwen 3 layer of the target's dimensions, so that targets without ``mtp.*`` weights get one too.
    Drafting uses the whole vocabulary; training compares the frequent tokens and a fresh sample of the others,
    which keeps those from drifting.
    """

    method = "mtp"

    def build(self) -> Any:
        """See :meth:`Recipe.build`."""
        from speculators.models.mtp import MTPDraftModel, MTPSpeculatorConfig

        config = MTPSpeculatorConfig(
            transformer_layer_config=self.layer_config(Qwen3Config),
            speculators_config=speculators_config("mtp", self.target, self.size.num_steps),
        )
        model = MTPDraftModel(config)
        del model.verifier_lm_head
        self.share_target(model, None)
        return model

    def first_hidden(self, batch: PaddedBatch) -> Tensor:
        """See :meth:`ChainRecipe.first_hidden`."""
        return batch.last[:, :-1].float()

    def step(
        self, hidden: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, cache: DynamicCache
    ) -> tuple[Tensor, Tensor]:
        """See :meth:`ChainRecipe.step`."""
        state = self.model.mtp_layers[0](
            hidden_states=hidden,
            token_embeddings=self.model.embed_tokens(tokens),
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=self.model.rotary_emb(hidden, positions),
            past_key_values=cache,
        )
        return state, state

    def compared_tokens(self, samples: Sequence[Sample]) -> Tensor:
        """See :meth:`Recipe.compared_tokens`; here with some of the tokens that the target never wrote."""
        num_tokens = self.target.head.shape[0]
        others = torch.randint(num_tokens, (min(_NEGATIVES, num_tokens),))
        return torch.cat([super().compared_tokens(samples), others]).unique()
