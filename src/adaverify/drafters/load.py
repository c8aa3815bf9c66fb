"""Builds the drafter that a configuration names."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adaverify.config import EngineConfig, SpeculativeConfig
from adaverify.drafters.base import Drafter
from adaverify.drafters.dflash import DFlashDrafter
from adaverify.drafters.dflash2 import DFlash2Drafter
from adaverify.drafters.dspark import DSparkDrafter
from adaverify.drafters.eagle3 import Eagle3Drafter
from adaverify.drafters.models import (
    DFlash2DraftModel,
    DFlashDraftModel,
    DraftModel,
    DSparkDraftModel,
    Eagle3DraftModel,
    MtpDraftModel,
    load_draft_model,
    read_draft_config,
)
from adaverify.drafters.mtp import MtpDrafter
from adaverify.drafters.standalone import StandaloneDrafter
from adaverify.drafters.vocabulary import check_same_tokenizer
from adaverify.engine import loader
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.runner import ModelRunner
from adaverify.errors import ConfigError


class LoadedDrafter(ABC):
    """A drafter whose weights are loaded and whose KV store waits for its size."""

    #: longest sequence it was made for, if its configuration says
    max_positions: int | None
    #: hidden states of the target that it reads
    tap_layer_ids: tuple[int, ...] = ()

    @property
    @abstractmethod
    def bytes_per_token(self) -> int:
        """What it keeps of a token, in bytes."""

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """The module that holds its weights."""

    @abstractmethod
    def build(self, num_blocks: int, config: EngineConfig) -> Drafter:
        """The drafter, with its stores in the blocks of the target's pool."""


class LoadedStandalone(LoadedDrafter):
    """A smaller language model of the target's family."""

    def __init__(
        self, speculative: SpeculativeConfig, target: loader.LoadedModel, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        dtype = str(target.model.dtype).removeprefix("torch.")
        self.speculative = speculative
        self.vocab_size = target.vocab_size
        self.loaded = loader.load_model(speculative.model, dtype, target.model.device, "drafter")
        check_same_tokenizer(target.name, tokenizer, speculative.model, loader.load_tokenizer(speculative.model))
        self.max_positions = self.loaded.max_positions

    @property
    def bytes_per_token(self) -> int:
        """See :attr:`LoadedDrafter.bytes_per_token`."""
        return self.loaded.bytes_per_token

    @property
    def network(self) -> nn.Module:
        """See :attr:`LoadedDrafter.network`."""
        return self.loaded.model

    def build(self, num_blocks: int, config: EngineConfig) -> Drafter:
        """See :meth:`LoadedDrafter.build`."""
        model = self.loaded.model
        kv = PagedKV(self.loaded.shapes, num_blocks, config.block_size, model.dtype, model.device)
        runner = ModelRunner(model, kv, max_padded_query=1 + self.speculative.num_speculative_tokens)
        return StandaloneDrafter(runner, self.vocab_size, self.speculative.draft_sample_method == "greedy")


class LoadedDraftModel(LoadedDrafter):
    """A trained draft model that reads the target's hidden states."""

    def __init__(self, speculative: SpeculativeConfig, target: PreTrainedModel) -> None:
        path = loader.checkpoint_folder(speculative.model, "drafter")
        config = read_draft_config(path, target.config)
        if config.method != speculative.method:
            raise ConfigError(
                f"drafter {speculative.model!r} is a checkpoint for method {config.method!r}, not "
                f"{speculative.method!r}; name that method"
            )
        most = config.max_draft_tokens
        if most is not None and speculative.num_speculative_tokens > most:
            raise ConfigError(
                f"num_speculative_tokens {speculative.num_speculative_tokens} is more than a block of drafter "
                f"{speculative.model!r} holds ({most}); lower it to {most}"
            )
        if speculative.scale_draft_confidence and not config.confidence_temperatures:
            raise ConfigError(
                f"scale_draft_confidence was asked for, but drafter {speculative.model!r} has no "
                "confidence_temperatures in its config.json; leave it out"
            )
        self.speculative = speculative
        self.model: DraftModel = load_draft_model(path, target, target.dtype, target.device)
        columns = self.model.target_token_ids
        if columns is not None and bool((columns[1:] <= columns[:-1]).any()):
            raise ConfigError(
                f"drafter {speculative.model!r}: its draft vocabulary (d2t) is not in the order of the target's ids; "
                "sort d2t and the rows of lm_head with it"
            )
        self.dtype: torch.dtype = target.dtype
        self.tap_layer_ids = config.tap_layer_ids
        self.max_positions = None

    @property
    def bytes_per_token(self) -> int:
        """See :attr:`LoadedDrafter.bytes_per_token`."""
        states = 0 if isinstance(self.model, DFlashDraftModel) else self.model.config.tapped_size * self.dtype.itemsize
        return PagedKV.bytes_per_token(self.model.kv_shapes(), self.dtype) + states

    @property
    def network(self) -> nn.Module:
        """See :attr:`LoadedDrafter.network`."""
        return self.model

    def build(self, num_blocks: int, config: EngineConfig) -> Drafter:
        """See :meth:`LoadedDrafter.build`."""
        model, greedy = self.model, self.speculative.draft_sample_method == "greedy"
        where = (num_blocks, config.block_size, greedy)
        padded = 1 + self.speculative.num_speculative_tokens
        match model:
            case DSparkDraftModel():
                return DSparkDrafter(model, *where, scale_confidence=self.speculative.scale_draft_confidence)
            case DFlash2DraftModel():
                return DFlash2Drafter(model, *where)
            case DFlashDraftModel():
                return DFlashDrafter(model, *where)
            case MtpDraftModel():
                return MtpDrafter(model, *where, max_padded_query=padded)
            case Eagle3DraftModel():
                return Eagle3Drafter(model, *where, max_padded_query=padded)
        raise AssertionError(type(model))


def load_drafter(
    speculative: SpeculativeConfig, target: loader.LoadedModel, tokenizer: PreTrainedTokenizerBase
) -> LoadedDrafter:
    """Load the drafter of ``speculative`` for a loaded target.

    Raises
    ------
    ConfigError
        It cannot be read, or was made for another target.
    """
    if speculative.method == "draft_model":
        return LoadedStandalone(speculative, target, tokenizer)
    return LoadedDraftModel(speculative, target.model)
