"""Configuration of the engine and of speculation; names and defaults are vLLM's where vLLM has them."""

from __future__ import annotations

import difflib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from adaverify.errors import ConfigError

SpeculativeMethod = Literal["draft_model", "eagle3", "mtp", "dflash", "dflash2", "dspark"]
DraftSampleMethod = Literal["probabilistic", "greedy"]
RejectionSampleMethod = Literal["standard", "coupled"]
DraftConfidence = Literal["auto", "head", "estimator"]
EstimatorMode = Literal["robust", "paper"]
MAX_SPECULATIVE_TOKENS = 16


class SpeculativeConfig(BaseModel):
    """How drafts are made and verified (the JSON of ``--speculative-config``).

    Attributes
    ----------
    method : str
        Drafting method: ``draft_model`` is a standalone smaller language model; ``eagle3``, ``mtp``, ``dflash``,
        ``dflash2`` and ``dspark`` read the target's hidden states.
    model : str
        Folder of the drafter, or hub name.
    num_speculative_tokens : int
        K, the number of draft tokens proposed per request and round, 1 to 16.
    draft_sample_method : str
        ``probabilistic`` draws drafts from the drafter's processed distribution; ``greedy`` takes its
        most likely token (q is then one-hot).
    rejection_sample_method : str
        ``standard``: accept with min(1, p/q), else draw from the residual (Leviathan et al. 2023). ``coupled``: draw
        drafter and target with the same noise and accept where they agree (Daliri et al. 2024): a little less is
        accepted, what is accepted can be told better, and a seed gives the same text whatever is drafted, which is also
        that of a server without drafter.
    enable_adaptive_verification : bool
        Verify only the drafts worth their cost.
    adaptive_draft_depth : bool, optional
        Draft only as deep as pays, or not at all, each step; as ``enable_adaptive_verification`` by default. Like
        that, it needs measured costs.
    live_costs : bool
        Keep the costs measured at start true by what served steps take; false trims by the start-up costs throughout.
    draft_confidence : str
        Where the chance of acceptance comes from: ``head`` (the drafter's own), ``estimator`` (fitted while
        serving), or ``auto``, the head if there is one.
    estimator : str
        ``robust`` fits from forgotten counts, an offset for each request, sampled and greedy requests apart; ``paper``
        is the published one, for comparison.
    estimator_state : str, optional
        File that the estimator's state is read from at the start, if it is there, and written to at the end.
    scale_draft_confidence : bool
        Correct the head by the temperatures in its checkpoint (sequential temperature scaling).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: SpeculativeMethod
    model: str
    num_speculative_tokens: int = Field(ge=1, le=MAX_SPECULATIVE_TOKENS)
    draft_sample_method: DraftSampleMethod = "probabilistic"
    rejection_sample_method: RejectionSampleMethod = "standard"
    enable_adaptive_verification: bool = False
    adaptive_draft_depth: bool | None = None
    live_costs: bool = True
    draft_confidence: DraftConfidence = "auto"
    estimator: EstimatorMode = "robust"
    estimator_state: str | None = None
    scale_draft_confidence: bool = False

    @property
    def adapts_draft_depth(self) -> bool:
        """Whether the depth of drafting is chosen each step."""
        return self.enable_adaptive_verification and self.adaptive_draft_depth is not False

    @model_validator(mode="after")
    def _check_depth(self) -> SpeculativeConfig:
        if self.adaptive_draft_depth and not self.enable_adaptive_verification:
            raise ValueError("adaptive_draft_depth needs enable_adaptive_verification; turn that on, too")
        return self

    @classmethod
    def parse(cls, value: SpeculativeConfig | dict[str, Any] | str | None) -> SpeculativeConfig | None:
        """Read a config from JSON text or a mapping.

        Raises
        ------
        ConfigError
            The JSON is unreadable, a key is unknown, or a value is out of range.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ConfigError(f"speculative_config is not valid JSON ({error}): {value!r}") from error
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise ConfigError(f"speculative_config: {explain(error, cls)}") from error


class EngineConfig(BaseModel):
    """Everything the engine needs to know before it loads a model.

    Attributes
    ----------
    model : str
        Folder or hub name of the target.
    tokenizer : str, optional
        Folder or hub name of the tokenizer; the target's own by default.
    dtype : str
        ``auto`` (the checkpoint's, or ``float32`` where the processor would only imitate it), ``bfloat16``,
        ``float16`` or ``float32``.
    device : str
        ``auto`` (CUDA where there is one), ``cpu`` or ``cuda``.
    seed : int
        Seeds the requests that bring no seed of their own.
    max_model_len : int, optional
        Longest prompt plus output, in tokens; the model's own limit by default.
    max_num_seqs : int
        Most requests in one step.
    max_num_batched_tokens : int
        Most tokens packed into one step, prefill chunks and drafts included.
    max_waiting : int
        Most requests waiting; further ones are refused.
    block_size : int
        Tokens per KV block.
    kv_cache_memory_bytes : int, optional
        Memory of the target's and drafter's KV pools together; a quarter of the free memory by default.
    num_kv_blocks : int, optional
        Exact number of KV blocks; overrides ``kv_cache_memory_bytes``.
    enable_prefix_caching : bool
        Reuse the KV blocks of prompts seen before.
    speculative_config : SpeculativeConfig, optional
        None serves without speculation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    tokenizer: str | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=0, ge=0)
    max_model_len: int | None = Field(default=None, ge=2)
    max_num_seqs: int = Field(default=64, ge=1)
    max_num_batched_tokens: int = Field(default=1024, ge=1)
    max_waiting: int = Field(default=1024, ge=1)
    block_size: int = Field(default=16, ge=1)
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    num_kv_blocks: int | None = Field(default=None, ge=1)
    enable_prefix_caching: bool = True
    speculative_config: SpeculativeConfig | None = None

    @classmethod
    def build(cls, **values: Any) -> EngineConfig:
        """Validate, with pydantic's report turned into one clear :class:`ConfigError`."""
        values["speculative_config"] = SpeculativeConfig.parse(values.get("speculative_config"))
        try:
            config = cls(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, cls)) from error
        if config.max_num_batched_tokens < config.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({config.max_num_batched_tokens}) is smaller than max_num_seqs "
                f"({config.max_num_seqs}): every running request needs one token a step. Raise the first or lower "
                "the second."
            )
        return config


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line per invalid field of ``model``: its name, what is wrong, what was given, what would be right."""
    parts = []
    for item in error.errors():
        name = ".".join(str(part) for part in item["loc"]) or "value"
        if item["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields)
            near = difflib.get_close_matches(name, model.model_fields, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            parts.append(f"{name}: unknown key; {hint}The keys are {known}")
            continue
        if item["type"] == "missing":
            parts.append(f"{name}: missing; it must be given")
            continue
        parts.append(f"{name}: {item['msg']} (given {item['input']!r})")
    return "; ".join(parts)
