"""What a recipe is: how one method's draft model is built, shown a batch, and judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from adaverify.errors import ConfigError
from adaverify.training.hidden import Sample

_SELECTED, _SELECTION_SHARE = 1024, 0.8


@dataclass(frozen=True)
class DraftSize:
    """Dimensions of a draft model; what is None follows from the target.

    Attributes
    ----------
    num_layers : int, optional
        Decoder layers (EAGLE-3 and MTP have one).
    intermediate_size : int, optional
        Width of the MLPs.
    num_attention_heads : int, optional
    draft_vocab_size : int
        Tokens that can be drafted, where the method has a reduced vocabulary.
    block_size : int
        Rows of a parallel drafter's block.
    num_steps : int
        Depth to which an autoregressive drafter is trained on its own states.
    rank : int
        Rank of DSpark's Markov head or of DFlash2's selector.
    """

    num_layers: int | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    draft_vocab_size: int = 8192
    block_size: int = 8
    num_steps: int = 3
    rank: int = 32


@dataclass(frozen=True)
class TargetInfo:
    """What a draft model takes from its target.

    Attributes
    ----------
    model : PreTrainedModel
    path : str
        Where the target was loaded from.
    name : str
        What the checkpoint calls the target.
    mask_token_id : int
        A token that text does not contain, for the rows still to be drafted.
    """

    model: PreTrainedModel
    path: str
    name: str
    mask_token_id: int

    @property
    def config(self) -> PretrainedConfig:
        """The text model's configuration."""
        return self.model.config.get_text_config()

    @property
    def final_norm(self) -> nn.Module:
        """The norm between the last layer and the head.

        Raises
        ------
        ConfigError
            The model has none where Llama, Qwen, Mistral and their kin have it.
        """
        norm = getattr(self.model.base_model, "norm", None)
        if norm is None:
            raise ConfigError(
                f"a drafter cannot be trained for {type(self.model).__name__}: its final norm was not found. Use a "
                "target built like Llama, Qwen or Mistral"
            )
        return norm  # type: ignore[return-value]

    @property
    def head(self) -> Tensor:
        """Weight of the LM head [V, H]."""
        return self.model.get_output_embeddings().weight  # type: ignore[return-value]

    @property
    def embedding(self) -> Tensor:
        """Weight of the token embedding [V, H]."""
        return self.model.get_input_embeddings().weight  # type: ignore[return-value]

    def default_taps(self) -> tuple[int, ...]:
        """EAGLE-3's choice of an early, a middle and a late layer."""
        num_layers = int(self.config.num_hidden_layers)
        taps = (2, num_layers // 2, num_layers - 3)
        return taps if len(set(taps)) == 3 and min(taps) >= 0 else tuple(sorted({0, num_layers // 2, num_layers}))


class Recipe(ABC):
    """Trains one method.

    Parameters
    ----------
    target : TargetInfo
    size : DraftSize
    vocabulary : Tensor [Vd], int64
        Target ids that can be drafted, ascending.
    taps : tuple of int
        Layers whose hidden states the cache holds.
    """

    method: str
    default_layers = 1
    default_block_size = 8

    def __init__(self, target: TargetInfo, size: DraftSize, vocabulary: Tensor, taps: tuple[int, ...]) -> None:
        self.target = target
        self.size = replace(size, num_layers=size.num_layers or self.default_layers)
        self.vocabulary = vocabulary
        self.taps = taps
        self.share = 0.0
        self.model = self.build().to(self.device)
        self._start_at_target_scale()

    @abstractmethod
    def build(self) -> Any:
        """The untrained draft model: a class of speculators, in fp32, with the target's weights shared in."""

    def prepare(self, samples: Sequence[Sample]) -> None:  # noqa: B027 - most methods need no preparation
        """Told the training texts before anything else happens."""

    def begin_step(self, share: float) -> None:
        """Told before every step what share of the run is done; a curriculum goes by it."""
        self.share = share

    def compared_tokens(self, samples: Sequence[Sample]) -> Tensor:
        """Tokens over which a step compares draft and target, ascending [N].

        The head is the largest matrix by far. Early on a step makes do with the tokens of its own texts, the lowest
        ids (the commonest, in a byte-pair vocabulary), and some of the others, drawn anew: p and q agree on every
        such selection only if they agree on all. The end of a run, and every evaluation, compares the whole draft
        vocabulary.
        """
        vocabulary = self.vocabulary
        if not self.model.training or self.share > _SELECTION_SHARE or len(vocabulary) <= 2 * _SELECTED:
            return vocabulary
        own = torch.cat([sample.token_ids for sample in samples]).unique()
        own = own[torch.isin(own, vocabulary)]
        others = vocabulary[torch.randint(len(vocabulary), (_SELECTED,))]
        return torch.cat([vocabulary[:_SELECTED], own, others]).unique()

    def extra_config(self, held_out: Sequence[Sample], max_length: int) -> dict[str, Any]:
        """Entries of the checkpoint's configuration that are found after training."""
        return {}

    @property
    def device(self) -> torch.device:
        """Where the target and the draft model are."""
        return self.target.model.device

    @abstractmethod
    def loss(self, samples: Sequence[Sample], max_length: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss over ``samples``, each cut to ``max_length`` tokens, and sums of what :meth:`acceptance` needs."""

    @abstractmethod
    def acceptance(self, sums: dict[str, float]) -> list[float]:
        """Greedy agreement by draft position, each given that the positions before agreed or were given."""

    @property
    def saved_tensors(self) -> dict[str, Tensor]:
        """The tensors of the checkpoint: what was trained and the vocabulary maps, not what the target has."""
        shared = ("embed_tokens.", "lm_head.", "verifier_")
        tensors = {}
        for name, tensor in self.model.state_dict().items():
            if not name.startswith(shared):
                tensors[name] = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        return tensors

    def take_over(self, tensors: dict[str, Tensor]) -> None:
        """Begin with ``tensors`` of a checkpoint, named and shaped as the model's."""
        self.model.load_state_dict(tensors, strict=False)

    @torch.no_grad()
    def _start_at_target_scale(self) -> None:
        """Begin with logits of the target's size, and with layers that add nothing yet.

        Random layers before a head made for other states start at several times the loss of knowing nothing.
        """
        gain = getattr(self.target.final_norm, "weight", None)
        for name, parameter in self.model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(0.1)
            elif gain is not None and name in ("norm.weight", "mtp_layers.0.final_layernorm.weight"):
                parameter.copy_(gain)

    def layer_config(self, kind: Callable[..., PretrainedConfig]) -> PretrainedConfig:
        """Configuration of the draft layers: the target's, with the size's changes."""
        config = self.target.config
        num_heads = int(self.size.num_attention_heads or config.num_attention_heads)
        num_kv_heads = min(getattr(config, "num_key_value_heads", None) or num_heads, num_heads)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"num_attention_heads {num_heads} is no multiple of the target's {num_kv_heads} key-value heads; "
                f"use {num_kv_heads * max(1, num_heads // num_kv_heads)}"
            )
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        layer_config = kind(
            vocab_size=int(self.target.embedding.shape[0]),
            hidden_size=config.hidden_size,
            intermediate_size=int(self.size.intermediate_size or config.intermediate_size),
            num_hidden_layers=self.size.num_layers,
            num_attention_heads=num_heads,
            num_key_value_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=getattr(config, "rope_parameters", None),
            tie_word_embeddings=False,
            attention_bias=False,
        )
        layer_config._attn_implementation = "sdpa"
        return layer_config

    def share_target(self, model: Any, head_rows: Tensor | None) -> None:
        """Put the target's embedding, head and final norm into ``model``; they are frozen and not saved."""
        dtype = torch.bfloat16
        head = self.target.head if head_rows is None else self.target.head[head_rows.to(self.target.head.device)]
        for name, weight in (
            ("embed_tokens", self.target.embedding),
            ("lm_head", head),
            ("verifier_lm_head", head),
            ("verifier_norm", getattr(self.target.final_norm, "weight", None)),
        ):
            if weight is not None and hasattr(model, name):
                frozen = nn.Parameter(weight.detach().to(dtype if "head" in name else torch.float32), False)
                getattr(model, name).weight = frozen


def load_vocabulary(model: Any, vocabulary: Tensor) -> None:
    """Tell a model of speculators its reduced vocabulary."""
    target_to_draft = torch.zeros(model.verifier_vocab_size, dtype=torch.bool)
    target_to_draft[vocabulary] = True
    model.load_vocab_mappings(target_to_draft, vocabulary - torch.arange(len(vocabulary)))
