"""Taps: the target's hidden states that a drafter reads, caught while the target runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adaverify.errors import ConfigError


class HiddenTaps:
    """Catches the residual stream of some layers during a forward pass.

    Parameters
    ----------
    model : PreTrainedModel
    layer_ids : sequence of int
        Id i is the residual stream after i decoder layers, which is the input of layer i; the number of layers
        is the input of the final norm (the convention of vLLM and speculators).

    Raises
    ------
    ConfigError
        The model's decoder layers cannot be found, or an id is beyond them.
    """

    def __init__(self, model: PreTrainedModel, layer_ids: Sequence[int]) -> None:
        layers = decoder_layers(model)
        beyond = [i for i in layer_ids if not 0 <= i <= len(layers)]
        if beyond:
            raise ConfigError(
                f"the drafter reads hidden states after layers {beyond}, but {type(model).__name__} has "
                f"{len(layers)} layers; this drafter was made for another target"
            )
        self.layer_ids = tuple(layer_ids)
        self._caught: dict[int, Tensor] = {}
        self._hooks = [
            layers[i - 1].register_forward_hook(self._catcher(i))
            if i
            else layers[0].register_forward_pre_hook(self._catch_input, with_kwargs=True)
            for i in set(layer_ids)
        ]

    def take(self) -> Tensor:
        """The states of the latest pass, side by side: [T, n * H]; forgets them."""
        states = torch.cat([self._caught[i] for i in self.layer_ids], dim=-1)
        self._caught.clear()
        return states

    def close(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _catch_input(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._caught[0] = (args[0] if args else kwargs["hidden_states"])[0]

    def _catcher(self, layer_id: int) -> Any:
        def catch(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._caught[layer_id] = (output[0] if isinstance(output, tuple) else output)[0]

        return catch


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The stack of decoder layers of a causal language model.

    Raises
    ------
    ConfigError
        No list of modules has as many entries as the configuration says there are layers.
    """
    num_layers = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise ConfigError(
        f"no stack of {num_layers} decoder layers was found in {type(model).__name__}, so its hidden states cannot be "
        "read; use a standalone drafter (method draft_model)"
    )
