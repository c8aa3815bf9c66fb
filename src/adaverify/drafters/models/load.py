"""Building draft models, and filling them from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adaverify.drafters.models.base import EMBEDDING, HEAD, DraftModel
from adaverify.drafters.models.config import DraftModelConfig, read_draft_config
from adaverify.drafters.models.dflash import DFlashDraftModel
from adaverify.drafters.models.dflash2 import DFlash2DraftModel
from adaverify.drafters.models.dspark import DSparkDraftModel
from adaverify.drafters.models.eagle3 import Eagle3DraftModel
from adaverify.drafters.models.mtp import MtpDraftModel
from adaverify.drafters.models.weights import check_tensors, read_tensors, target_ids

_MODELS: dict[str, type[DraftModel]] = {
    "eagle3": Eagle3DraftModel,
    "mtp": MtpDraftModel,
    "dflash": DFlashDraftModel,
    "dflash2": DFlash2DraftModel,
    "dspark": DSparkDraftModel,
}
# so small that its precision costs nothing
_FLOAT32_PREFIX = "confidence_head."


def build_draft_model(
    config: DraftModelConfig,
    target: PreTrainedModel,
    dtype: torch.dtype,
    device: torch.device,
    target_token_ids: Tensor | None = None,
) -> DraftModel:
    """A draft model with random weights and the target's embedding and head.

    Parameters
    ----------
    target_token_ids : Tensor [Vd], int64, optional
        Of a reduced vocabulary; by default the target's first tokens.

    Returns
    -------
    DraftModel
        Of the class of ``config.method``, in evaluation mode.
    """
    if config.reduced_vocab and target_token_ids is None:
        target_token_ids = torch.arange(config.draft_vocab_size)
    with torch.device(device):
        model = _MODELS[config.method](config, None if target_token_ids is None else target_token_ids.to(device))
    # not model.to(dtype): inverse frequencies of rotations must stay float32
    for name, parameter in model.own_parameters().items():
        if not name.startswith(_FLOAT32_PREFIX):
            parameter.data = parameter.data.to(dtype)
    model.share(target)
    return model.eval()


def load_draft_model(path: str | Path, target: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> DraftModel:
    """Load the draft model in folder ``path`` for ``target``.

    Embedding and head are the target's own parameters, unless the checkpoint holds others. The head of a reduced
    vocabulary is the checkpoint's, or else the target's rows.

    Returns
    -------
    DraftModel
        Of the class of its method, frozen, in evaluation mode.

    Raises
    ------
    ConfigError
        The configuration or the weights cannot be used with ``target``.
    """
    config = read_draft_config(path, target.config)
    tensors = read_tensors(path)
    ids = target_ids(tensors.pop("d2t", None), config.draft_vocab_size, config.vocab_size, path)
    model = build_draft_model(config, target, dtype, device, ids)
    expected = {name: parameter.shape for name, parameter in model.own_parameters().items()}
    for name, module in ((EMBEDDING, model.embed_tokens), (HEAD, model.lm_head)):
        # training tools save a table of nan in place of the target's
        if name in tensors and bool(tensors[name].isnan().any()):
            del tensors[name]
        if name in tensors or config.hidden_size != config.target_hidden_size:
            expected[name] = module.weight.shape
    check_tensors(tensors, expected, path)
    for name, parameter in model.own_parameters().items():
        parameter.data.copy_(tensors[name])
        parameter.requires_grad_(False)
    for name, module in ((EMBEDDING, model.embed_tokens), (HEAD, model.lm_head)):
        if name in tensors:
            _replace(module, tensors[name])
    return model


def _replace(module: nn.Embedding | nn.Linear, weight: Tensor) -> None:
    """Give ``module`` a weight of its own, unless it is what it already has."""
    shared = module.weight
    weight = weight.to(dtype=shared.dtype, device=shared.device)
    if not torch.equal(weight, shared):
        module.weight = nn.Parameter(weight, requires_grad=False)
