"""Draft model configurations as their authors publish them, in the words of ``speculators``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaverify.errors import ConfigError

# keys that change what the model computes, and the only values for which ours computes the same
_ONLY: dict[str, Any] = {
    "use_aux_hidden_state": True,
    "parallel_drafting": False,
    "is_neox_style": True,
    "rope_is_neox_style": True,
    "partial_rotary_factor": 1.0,
    "attention_sink_bias": False,
    "add_swa_attention_sink_bias": False,
    "use_swa": False,
    "enable_qwen35_gated_q_proj": False,
    "log_snr_conditioning": False,
    "logit_scale": 1.0,
}
_NOT_OF_LAYERS = ("architectures", "auto_map", "dflash_config", "dspark_config", "eagle_config", "block_size")
_EAGLE3_KEYS = (
    "draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids",
    "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
)  # fmt: skip
_BLOCK_KEYS = (
    "block_size", "mask_token_id", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k",
    "markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    "confidence_temperatures", "draft_vocab_size", "target_hidden_size",
)  # fmt: skip


def translate(raw: Mapping[str, Any], file: Path, num_target_layers: int) -> dict[str, Any]:
    """Say a published configuration in the keys of ``speculators``.

    Parameters
    ----------
    raw : mapping
        The file's content.
    file : Path
        For messages.
    num_target_layers : int

    Raises
    ------
    ConfigError
        The kind of draft model is unknown, or uses an option that is not supported.
    """
    method = _method(raw, file)
    nested: dict[str, Any] = {}
    for name in ("eagle_config", "dflash_config", "dspark_config"):
        nested |= raw.get(name) or {}
    known = {**raw, **nested}
    for name, only in _ONLY.items():
        for where in (known, raw.get("rope_parameters") or {}, raw.get("rope_scaling") or {}):
            if where.get(name, only) not in (only, None):
                raise ConfigError(
                    f"{file}: {name} = {where[name]!r} is not supported, only {only!r}; use another draft model"
                )
    layers = {name: value for name, value in raw.items() if name not in _NOT_OF_LAYERS}
    values: dict[str, Any] = {"speculators_model_type": method, "transformer_layer_config": layers}
    if method == "eagle3":
        layers.setdefault("model_type", "llama")
        return values | {name: known.get(name) for name in _EAGLE3_KEYS}
    return values | _block_values(method, known, num_target_layers, file)


def _method(raw: Mapping[str, Any], file: Path) -> str:
    """Which method the named architectures mean.

    A DFlash architecture with a Markov head could draft from its anchor, as DSpark does, or not: nothing tells.
    """
    architectures = raw.get("architectures") or []
    names = " ".join(architectures).lower()
    nested = raw.get("dflash_config") or {}
    if "dflash2" in names:
        return "dflash2"
    if "dspark" in names or nested.get("projector_type") == "dspark":
        return "dspark"
    if "dflash" in names or nested:
        if raw.get("markov_rank") or nested.get("markov_rank"):
            raise ConfigError(
                f"{file}: a DFlash architecture ({architectures}) with a markov_rank; "
                "if it is a DSpark model, write DSparkDraftModel as its architecture"
            )
        return "dflash"
    if "eagle3" in names:
        return "eagle3"
    raise ConfigError(
        f"{file}: no known kind of draft model (architectures {architectures}, no speculators_model_type); supported "
        "are speculators' eagle3, mtp, dflash, dflash2 and dspark, and published EAGLE-3, DFlash, DFlash2 and DSpark. "
        "A whole language model is served with the method draft_model"
    )


def _block_values(method: str, known: Mapping[str, Any], num_target_layers: int, file: Path) -> dict[str, Any]:
    values = {name: known.get(name) for name in _BLOCK_KEYS}
    ids = known.get("target_layer_ids")
    if ids is not None:
        if num_target_layers - 1 in ids:
            # published code reads that one after the final norm, every other one before any norm
            raise ConfigError(
                f"{file}: target_layer_ids {ids} hold the target's last layer, read after its final norm, which is "
                "not supported; use a draft model that reads earlier layers"
            )
        # counted from the output of the first layer
        values["aux_hidden_state_layer_ids"] = [i + 1 for i in ids]
    causal = known.get("is_causal")
    values |= {
        "sample_from_anchor": method == "dspark",
        "sliding_window_non_causal": False,
        "window_from_anchor": False,
        "causal": known.get("causal") if causal is None else causal,
        "embedding_scale": known.get("input_embedding_scale"),
        "logit_scale": known.get("output_multiplier"),
        "logit_softcap": known.get("final_logit_softcapping"),
    }
    if method == "dspark":
        # a model without the head need not say so, and one with it reads the Markov embedding as the paper does
        values["markov_rank"] = known.get("markov_rank") or 0
        values["enable_confidence_head"] = bool(known.get("enable_confidence_head"))
    return values
