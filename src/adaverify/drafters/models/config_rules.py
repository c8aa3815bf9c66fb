"""Which keys each method's configuration has, and what they may say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from adaverify.drafters.models.layers import is_sliding
from adaverify.errors import ConfigError

if TYPE_CHECKING:
    from adaverify.drafters.models.config import DraftModelConfig

BLOCK_METHODS = ("dflash", "dflash2", "dspark")
MARKOV_HEAD_TYPES = ("vanilla", "gated", "rnn")
LAYER_TYPES = {"eagle3": ("llama", "qwen3"), "mtp": ("llama", "qwen3")} | dict.fromkeys(BLOCK_METHODS, ("qwen3",))

REQUIRED: dict[str, tuple[str, ...]] = {"eagle3": (), "mtp": ()} | dict.fromkeys(
    BLOCK_METHODS, ("block_size", "mask_token_id")
)
_BLOCK_OPTIONS = (
    "sample_from_anchor", "sliding_window_non_causal", "window_from_anchor", "causal",
    "embedding_scale", "logit_scale", "logit_softcap",
)  # fmt: skip
OPTIONS: dict[str, tuple[str, ...]] = {
    "eagle3": ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
    "mtp": (),
    "dflash": _BLOCK_OPTIONS,
    "dflash2": (*_BLOCK_OPTIONS, "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
    "dspark": (
        *_BLOCK_OPTIONS, "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
        "confidence_temperatures",
    ),
}  # fmt: skip
# what speculators takes for keys that the file lacks
DEFAULTS: dict[str, dict[str, Any]] = {
    "eagle3": {},
    "mtp": {},
    "dflash": {},
    "dflash2": {"sliding_window_non_causal": True},
    "dspark": {
        "sample_from_anchor": True,
        "markov_rank": 256,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
}


def check(config: DraftModelConfig, target: PretrainedConfig, file: Path) -> None:
    """Refuse what cannot be computed, or belongs to another target.

    Raises
    ------
    ConfigError
    """
    another = "this draft model was made for another target; use one made for this target"
    problem = None
    depth = int(target.num_hidden_layers)
    beyond = [i for i in config.tap_layer_ids if not 0 <= i <= depth]
    head = config.enable_confidence_head and config.confidence_head_with_markov
    sliding = any(is_sliding(config.layer_config, i) for i in range(config.num_layers))
    temperatures = config.confidence_temperatures
    if config.target_hidden_size != target.hidden_size:
        problem = (
            f"it reads hidden states of {config.target_hidden_size} numbers, the target's have {target.hidden_size}"
        )
    elif config.vocab_size != target.vocab_size:
        problem = f"its vocabulary has {config.vocab_size} tokens, the target's {target.vocab_size}"
    elif beyond or not config.tap_layer_ids:
        problem = f"it reads hidden states after layers {list(config.tap_layer_ids)}, the target has {depth} layers"
    if problem:
        raise ConfigError(f"{file}: {problem}: {another}")
    if not 0 < config.draft_vocab_size <= config.vocab_size:
        problem = f"draft_vocab_size {config.draft_vocab_size} is not within the target's {config.vocab_size} tokens"
    elif config.method in ("mtp", "dflash2") and config.reduced_vocab:
        problem = f"{config.method} with a reduced draft vocabulary ({config.draft_vocab_size}) is not supported"
    elif config.norm_before_fc and config.fc_norm:
        problem = "norm_before_fc and fc_norm exclude each other"
    elif not config.window_from_anchor and sliding and config.layer_config.sliding_window is None:
        problem = "layers with a sliding window, but no use_sliding_window and sliding_window"
    elif config.method in BLOCK_METHODS and config.block_size < 2:
        problem = f"block_size {config.block_size} leaves nothing to draft"
    elif config.method in BLOCK_METHODS and not 0 <= config.mask_token_id < config.vocab_size:
        problem = f"mask_token_id {config.mask_token_id} is not one of the {config.vocab_size} tokens"
    elif config.method == "dflash2" and config.hidden_size % config.conv_group_size:
        problem = f"conv_group_size {config.conv_group_size} does not divide the hidden size {config.hidden_size}"
    elif config.method == "dflash2" and not 0 < config.selector_top_k <= config.vocab_size:
        problem = f"selector_top_k {config.selector_top_k} is not within the {config.vocab_size} tokens"
    elif config.markov_head_type not in MARKOV_HEAD_TYPES:
        problem = f"markov_head_type {config.markov_head_type!r} is not one of {', '.join(MARKOV_HEAD_TYPES)}"
    elif config.method == "dspark" and head and config.markov_rank <= 0:
        problem = "confidence_head_with_markov needs a markov_rank above 0"
    elif temperatures and (len(temperatures) != config.max_draft_tokens or min(temperatures) <= 0):
        problem = (
            f"confidence_temperatures must be {config.max_draft_tokens} positive numbers, not {list(temperatures)}"
        )
    if problem:
        raise ConfigError(f"{file}: {problem}; mend the file or use another draft model")
