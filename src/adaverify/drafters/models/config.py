"""What a draft model's ``config.json`` says, whichever project wrote it, as one dataclass."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from transformers import AutoConfig, PretrainedConfig

from adaverify.drafters.models.config_rules import BLOCK_METHODS, DEFAULTS, LAYER_TYPES, OPTIONS, REQUIRED, check
from adaverify.drafters.models.published import translate
from adaverify.errors import ConfigError

Method = Literal["eagle3", "mtp", "dflash", "dflash2", "dspark"]
MarkovHeadType = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class DraftModelConfig:
    """Shape of a draft model; fields of other methods than its own keep their defaults.

    Attributes
    ----------
    method : {"eagle3", "mtp", "dflash", "dflash2", "dspark"}
    layer_config : PretrainedConfig
        Of the draft layers; its ``vocab_size`` is the target's.
    tap_layer_ids : tuple of int
        Hidden states that the drafter reads: i is the target's residual stream after i layers, so that the number
        of layers is the input of the final norm.
    target_hidden_size, draft_vocab_size : int
    norm_before_residual, norm_before_fc, fc_norm, norm_output : bool
        EAGLE-3: the residual starts after the norm; one norm over all taps, or one for each; the hidden state fed
        back is the normed one.
    block_size, mask_token_id : int
        DFlash family: rows of a block, and what stands for a token still to be drafted.
    sample_from_anchor : bool
        DFlash family: row k drafts the token after position k, the anchor's row included, instead of its own.
    sliding_window_non_causal : bool
        DFlash family: rows of a block see the rows after them in layers with a sliding window, too.
    window_from_anchor : bool
        DFlash family: a sliding window reaches back from the anchor and is the same for all rows of a block
        (speculators), instead of from each row (published DFlash).
    causal : bool, optional
        DFlash family: whether rows of a block are kept from seeing those after them, in every layer; None leaves it
        to ``sliding_window_non_causal``.
    embedding_scale, logit_scale, logit_softcap : float
        DFlash family: factors on embeddings and logits, and the logits' bound (0: none).
    conv_kernel_size, conv_group_size, selector_rank, selector_top_k : int
        DFlash2.
    markov_rank : int
        DSpark; 0: no Markov head.
    markov_head_type : {"vanilla", "gated", "rnn"}
    enable_confidence_head, confidence_head_with_markov : bool
        DSpark.
    confidence_temperatures : tuple of float, optional
        DSpark: divisors of the confidence logits, one for each drafted position of a block (arXiv 2607.05147).
    """

    method: Method
    layer_config: PretrainedConfig
    tap_layer_ids: tuple[int, ...]
    target_hidden_size: int
    draft_vocab_size: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    block_size: int = 0
    mask_token_id: int = 0
    sample_from_anchor: bool = False
    sliding_window_non_causal: bool = False
    window_from_anchor: bool = True
    causal: bool | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    conv_kernel_size: int = 2
    conv_group_size: int = 16
    selector_rank: int = 256
    selector_top_k: int = 16
    markov_rank: int = 0
    markov_head_type: MarkovHeadType = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False
    confidence_temperatures: tuple[float, ...] | None = None

    @property
    def hidden_size(self) -> int:
        """Width of the draft model."""
        return int(self.layer_config.hidden_size)

    @property
    def tapped_size(self) -> int:
        """Width of the target's tapped hidden states, side by side."""
        return len(self.tap_layer_ids) * self.target_hidden_size

    @property
    def vocab_size(self) -> int:
        """Tokens of the target."""
        return int(self.layer_config.vocab_size)

    @property
    def num_layers(self) -> int:
        """Draft layers; MTP has one, and its ``layer_config`` is the whole target's."""
        return 1 if self.method == "mtp" else int(self.layer_config.num_hidden_layers)

    @property
    def max_draft_tokens(self) -> int | None:
        """Most drafts of one block; None: no bound."""
        if self.method not in BLOCK_METHODS:
            return None
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def reduced_vocab(self) -> bool:
        """Whether the draft vocabulary is a part of the target's."""
        return self.draft_vocab_size != self.vocab_size


def read_draft_config(path: str | Path, target_config: PretrainedConfig) -> DraftModelConfig:
    """Read and check the ``config.json`` of the draft model in folder ``path``.

    Understood are the format of ``speculators`` and what the authors of EAGLE-3, DFlash, DFlash2 and DSpark publish.

    Parameters
    ----------
    path : str or Path
    target_config : PretrainedConfig
        Of the model to draft for.

    Raises
    ------
    ConfigError
        The file is missing or unreadable, of an unknown or unsupported kind, lacks a key, or does not fit the target.
    """
    file = Path(path).expanduser() / "config.json"
    try:
        raw = dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{file} cannot be read as a draft model's configuration ({error}); give the folder of a draft model"
        ) from error
    target = target_config.get_text_config()
    values = raw if "speculators_model_type" in raw else translate(raw, file, int(target.num_hidden_layers))
    method = values["speculators_model_type"]
    if method not in get_args(Method):
        raise ConfigError(
            f"{file}: speculators_model_type {method!r} is not supported; supported are {', '.join(get_args(Method))}"
        )
    layer_config = _layer_config(values, method, file)
    try:
        config = _build(values, method, layer_config, int(target.num_hidden_layers), file)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{file}: a key holds a value of the wrong kind ({error}); mend the file") from error
    check(config, target, file)
    return config


def _layer_config(values: Mapping[str, Any], method: str, file: Path) -> PretrainedConfig:
    fields = dict(_required(values, "transformer_layer_config", file))
    model_type = fields.pop("model_type", "qwen3")
    if model_type not in LAYER_TYPES[method]:
        raise ConfigError(
            f"{file}: draft layers of type {model_type!r} are not supported for {method}; "
            f"supported are {', '.join(LAYER_TYPES[method])}"
        )
    try:
        config = AutoConfig.for_model(model_type, **fields)
    except Exception as error:
        raise ConfigError(f"{file}: transformer_layer_config is not valid ({error}); mend the file") from error
    if "rope_type" not in (config.rope_parameters or {}):
        raise ConfigError(f"{file}: rope_parameters {config.rope_parameters} are not one set for all layers; use one")
    return config


def _build(
    values: Mapping[str, Any], method: Method, layer_config: PretrainedConfig, num_target_layers: int, file: Path
) -> DraftModelConfig:
    if values.get("num_nextn_predict_layers", 1) != 1:
        raise ConfigError(
            f"{file}: num_nextn_predict_layers {values['num_nextn_predict_layers']} is not supported, only 1"
        )
    if method == "mtp":
        taps: Any = (num_target_layers,)
    elif method == "eagle3":
        # what EAGLE-3's authors read, and all their checkpoints leave unsaid
        taps = values.get("eagle_aux_hidden_state_layer_ids") or (2, num_target_layers // 2, num_target_layers - 3)
    else:
        taps = _required(values, "aux_hidden_state_layer_ids", file)
    options: dict[str, Any] = {name: values[name] for name in OPTIONS[method] if values.get(name) is not None}
    options |= {name: _required(values, name, file) for name in REQUIRED[method]}
    if "confidence_temperatures" in options:
        options["confidence_temperatures"] = tuple(float(t) for t in options["confidence_temperatures"])
    return DraftModelConfig(
        method=method,
        layer_config=layer_config,
        tap_layer_ids=tuple(int(i) for i in taps),
        target_hidden_size=int(values.get("target_hidden_size") or layer_config.hidden_size),
        draft_vocab_size=int(values.get("draft_vocab_size") or layer_config.vocab_size),
        **(DEFAULTS[method] | options),
    )


def _required(values: Mapping[str, Any], name: str, file: Path) -> Any:
    if values.get(name) is None:
        raise ConfigError(f"{file}: the key {name} is missing; add it, or fetch the draft model again")
    return values[name]
