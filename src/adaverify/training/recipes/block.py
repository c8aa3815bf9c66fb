"""Recipes of the parallel drafters: DFlash, DFlash2 and DSpark, trained on anchored blocks.

Source: DFlash (arXiv 2602.06036); DSpark (arXiv 2607.05147): its confidence head learns 1 - TV(p, q).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import Qwen3Config

from adaverify.training.batches import pack_samples
from adaverify.training.block_attention import use_block_attention
from adaverify.training.hidden import Sample
from adaverify.training.losses import kl_divergence, total_variation
from adaverify.training.recipes.base import Recipe, load_vocabulary
from adaverify.training.speculators_config import speculators_config
from adaverify.training.temperature import fit_temperatures

_TOKENS_PER_ANCHOR = 4
_LOSS_DECAY = 4.0
_SCALED_BY, _LEAST_SCALE = 64, 1e-3


class DFlashRecipe(Recipe):
    """DFlash: mask tokens after an anchor, filled in at once."""

    method = "dflash"
    default_layers = 2
    sample_from_anchor: ClassVar[bool] = False
    tap_scale: Tensor | None = None

    @torch.no_grad()
    def prepare(self, samples: Sequence[Sample]) -> None:
        """Measure the taps' size, channel by channel.

        Channels of a residual stream differ a hundredfold, and late layers outweigh early ones. The draft model has
        no norm before it mixes them, so training sees them divided by their size, and the checkpoint's matrix takes
        the division over. A text's first token, whose states are out of all proportion, does not count.
        """
        squares = torch.cat([sample.taps[1:].float() for sample in samples[:_SCALED_BY]]).square()
        self.tap_scale = squares.mean(0).sqrt().clamp(min=_LEAST_SCALE).to(self.device)

    @property
    def saved_tensors(self) -> dict[str, Tensor]:
        """See :attr:`Recipe.saved_tensors`."""
        weight = self.model.fc.weight
        scaled = weight if self.tap_scale is None else weight / self.tap_scale
        return super().saved_tensors | {"fc.weight": scaled.detach().to(torch.bfloat16)}

    def take_over(self, tensors: dict[str, Tensor]) -> None:
        """See :meth:`Recipe.take_over`."""
        if self.tap_scale is not None and "fc.weight" in tensors:
            tensors = tensors | {"fc.weight": tensors["fc.weight"] * self.tap_scale}
        super().take_over(tensors)

    def build(self) -> Any:
        """See :meth:`Recipe.build`."""
        model = self.create(self.common_config())
        if model.use_draft_vocab:
            load_vocabulary(model, self.vocabulary)
        self.share_target(model, self.vocabulary if model.use_draft_vocab else None)
        use_block_attention(model)
        return model

    def create(self, common: dict[str, Any]) -> Any:
        """The model, from the fields that the three methods have in common."""
        from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig

        return DFlashDraftModel(DFlashSpeculatorConfig(**common))

    def common_config(self) -> dict[str, Any]:
        """Fields of the configuration that the three methods have in common."""
        num_drafts = self.size.block_size - (0 if self.sample_from_anchor else 1)
        return {
            "transformer_layer_config": self.layer_config(Qwen3Config),
            "draft_vocab_size": len(self.vocabulary),
            "block_size": self.size.block_size,
            "aux_hidden_state_layer_ids": list(self.taps),
            "mask_token_id": self.target.mask_token_id,
            "sample_from_anchor": self.sample_from_anchor,
            "speculators_config": speculators_config(self.method, self.target, num_drafts),
        }

    def loss(
        self, samples: Sequence[Sample], max_length: int, num_blocks: int | None = None, **more: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See :meth:`Recipe.loss`; with ``num_blocks`` blocks, or as many as the texts' length asks for."""
        batch = pack_samples(samples, max_length, self.device)
        self.compare(samples)
        taps = batch.taps.float()
        _, loss, metrics = self.model(
            hidden_states=taps if self.tap_scale is None else taps / self.tap_scale,
            input_ids=batch.token_ids,
            loss_mask=batch.loss_mask,
            verifier_last_hidden_states=batch.last.to(torch.bfloat16),
            document_ids=batch.document_ids,
            position_ids=batch.position_ids,
            loss_config={"kl_div": (kl_divergence, 1.0)},
            gamma=_LOSS_DECAY,
            max_anchors=num_blocks or max(1, batch.num_tokens // _TOKENS_PER_ANCHOR),
            **(self.extra_loss_arguments() | more),
        )
        return loss, metrics

    def compare(self, samples: Sequence[Sample]) -> None:
        """Put the head's rows for the step's tokens into the model; it computes over as many as it finds."""
        if self.model.use_draft_vocab:
            rows = self.target.head[self.compared_tokens(samples).to(self.device)]
            for head in (self.model.lm_head, self.model.verifier_lm_head):
                head.weight = nn.Parameter(rows.to(torch.bfloat16), requires_grad=False)

    def extra_loss_arguments(self) -> dict[str, Any]:
        """What this method's loss takes besides."""
        return {}

    def acceptance(self, sums: dict[str, float]) -> list[float]:
        """See :meth:`Recipe.acceptance`; here each position counts on its own."""
        first = 0 if self.sample_from_anchor else 1
        return [
            sums[f"position_{i}_acc_sum"] / max(1.0, sums[f"position_{i}_acc_total"])
            for i in range(first, self.size.block_size)
        ]


class DFlash2Recipe(DFlashRecipe):
    """DFlash2: local convolutions in the block, and a left-to-right walk over candidates. Whole vocabulary."""

    method = "dflash2"

    def create(self, common: dict[str, Any]) -> Any:
        """See :meth:`DFlashRecipe.create`."""
        from speculators.models.dflash2.config import DFlash2SpeculatorConfig
        from speculators.models.dflash2.core import DFlash2DraftModel

        common["draft_vocab_size"] = int(self.target.embedding.shape[0])
        return DFlash2DraftModel(
            DFlash2SpeculatorConfig(
                **common, conv_kernel_size=2, conv_group_size=32, selector_rank=self.size.rank, selector_top_k=16
            )
        )

    def extra_loss_arguments(self) -> dict[str, Any]:
        """See :meth:`DFlashRecipe.extra_loss_arguments`."""
        return {"tv_loss_fn": total_variation}

    def compare(self, samples: Sequence[Sample]) -> None:
        """The whole vocabulary: the selector and the Markov head have a weight for each of its tokens."""


class DSparkRecipe(DFlash2Recipe):
    """DSpark: a low-rank Markov bias from the previous token, and a confidence head."""

    method = "dspark"
    default_block_size = 7
    sample_from_anchor: ClassVar[bool] = True

    def create(self, common: dict[str, Any]) -> Any:
        """See :meth:`DFlashRecipe.create`."""
        from speculators.models.dspark.config import DSparkSpeculatorConfig
        from speculators.models.dspark.core import DSparkDraftModel

        return DSparkDraftModel(DSparkSpeculatorConfig(**common, markov_rank=self.size.rank))

    @torch.no_grad()
    def extra_config(self, held_out: Sequence[Sample], max_length: int) -> dict[str, Any]:
        """The temperatures that calibrate the head, from what it says of held-out texts."""
        said: list[Tensor] = []
        true: list[Tensor] = []

        def variation(logits: Tensor, targets: Tensor) -> Tensor:
            true.append(1.0 - total_variation(logits, targets))
            return 1.0 - true[-1]

        self.model.eval()
        hook = self.model.confidence_head.register_forward_hook(lambda module, args, output: said.append(output))
        try:
            for sample in held_out:
                # one text at a time, and no more blocks than fit in its answer: none runs into anything else
                room = min(len(sample.token_ids), max_length) - sample.prompt_length - self.size.block_size
                if room > 0:
                    with torch.autocast(self.device.type, torch.bfloat16):
                        self.loss([sample], max_length, num_blocks=room, tv_loss_fn=variation)
        finally:
            hook.remove()
        blocks = [torch.cat([part.reshape(-1, self.size.block_size) for part in parts]) for parts in (said, true)]
        return {"confidence_temperatures": fit_temperatures(*(block.float().cpu() for block in blocks))}
