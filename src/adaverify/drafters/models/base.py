"""What all draft models share: the target's embedding and head, and the draft vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from adaverify.drafters.models.config import DraftModelConfig
from adaverify.drafters.models.layers import kv_shapes
from adaverify.engine.kv_cache import LayerShape

# the target's, unless the checkpoint holds others
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


class DraftModel(nn.Module):
    """A draft model over packed rows and the paged store; not usable before :meth:`share`.

    Parameters
    ----------
    config : DraftModelConfig
    target_token_ids : Tensor [Vd], int64, optional
        Required if the draft vocabulary is reduced.

    Attributes
    ----------
    config : DraftModelConfig
    target_token_ids : Tensor [Vd], int64, optional
        The target's id of each draft token; None: the vocabularies are the same.
    """

    target_token_ids: Tensor | None

    def __init__(self, config: DraftModelConfig, target_token_ids: Tensor | None = None) -> None:
        super().__init__()
        assert (target_token_ids is not None) == config.reduced_vocab
        self.config = config
        self.register_buffer("target_token_ids", target_token_ids, persistent=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, device="meta")
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False, device="meta")

    def kv_shapes(self) -> dict[int, LayerShape]:
        """Key-value shape of each layer, for the draft model's own paged store."""
        return kv_shapes(self.config.layer_config, self.config.num_layers)

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by name, without embedding and head."""
        return {name: p for name, p in self.named_parameters() if name not in (EMBEDDING, HEAD)}

    def share(self, target: PreTrainedModel) -> None:
        """Take the target's embedding and head: the same parameters, or a copy of the rows of a reduced vocabulary.

        A draft model of another width than the target's gets random ones.
        """
        if self.config.hidden_size != self.config.target_hidden_size:
            like = next(iter(self.own_parameters().values()))
            for module in (self.embed_tokens, self.lm_head):
                weight = torch.randn(module.weight.shape, dtype=like.dtype, device=like.device)
                module.weight = nn.Parameter(weight * self.config.layer_config.initializer_range)
            return
        self.embed_tokens.weight = target.get_input_embeddings().weight  # type: ignore[union-attr, assignment]
        head = target.get_output_embeddings().weight  # type: ignore[union-attr]
        if self.target_token_ids is None:
            self.lm_head.weight = head  # type: ignore[assignment]
        else:
            self.lm_head.weight = nn.Parameter(head.detach()[self.target_token_ids], requires_grad=False)  # type: ignore[index]

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings [..., H] of target ``token_ids``, unscaled, in the draft model's dtype."""
        dtype = next(p.dtype for name, p in self.named_parameters() if name not in (EMBEDDING, HEAD))
        return F.embedding(token_ids, self.embed_tokens.weight).to(dtype)

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits [..., Vd] of normed ``hidden`` [..., H]."""
        logits: Tensor = self.lm_head(hidden.to(self.lm_head.weight.dtype))
        return logits
