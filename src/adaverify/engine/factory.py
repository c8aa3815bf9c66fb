"""Builds an engine from its configuration: models, KV pools, drafter, measured costs."""

from __future__ import annotations

from adaverify.config import EngineConfig, SpeculativeConfig
from adaverify.drafters.standalone import StandaloneDrafter
from adaverify.drafters.vocabulary import check_same_tokenizer
from adaverify.engine import loader
from adaverify.engine.block_pool import BlockPool
from adaverify.engine.engine import Engine
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.loader import LoadedModel
from adaverify.engine.profiling import profile_costs
from adaverify.engine.runner import ModelRunner
from adaverify.engine.speculation import Speculation


def build_engine(config: EngineConfig, profile: bool = True) -> Engine:
    """Load target and drafter, share the KV memory out, and measure the costs that adaptive verification needs.

    Parameters
    ----------
    config : EngineConfig
    profile : bool
        Measure the cost curves if adaptive verification is on; without them every draft is verified.

    Raises
    ------
    ConfigError
        Names what cannot be served and what to change.
    """
    device = loader.resolve_device(config.device)
    speculative = config.speculative_config
    if speculative is not None:
        loader.check_name(speculative.model, "drafter")
    target = loader.load_model(config.model, config.dtype, device, "target")
    tokenizer = loader.load_tokenizer(config.tokenizer or config.model)
    models = [target]
    if speculative is not None:
        models.append(loader.load_model(speculative.model, _dtype_name(target), device, "drafter"))
        check_same_tokenizer(config.model, tokenizer, speculative.model, loader.load_tokenizer(speculative.model))
    max_len = loader.max_model_len(config, *models)
    num_blocks = loader.num_kv_blocks(config, max_len, device, *models)
    max_len = min(max_len, (num_blocks - 1) * config.block_size)
    config = config.model_copy(
        update={
            "dtype": _dtype_name(target),
            "device": device.type,
            "max_model_len": max_len,
            "num_kv_blocks": num_blocks - 1,
        }
    )
    runners = [_runner(model, config, num_blocks) for model in models]
    engine = Engine(
        config=config,
        tokenizer=tokenizer,
        runner=runners[0],
        pool=BlockPool(num_blocks, config.block_size, config.enable_prefix_caching),
        max_model_len=max_len,
        eos_token_ids=target.eos_token_ids,
        speculation=_speculation(speculative, config, runners, target) if speculative else None,
    )
    if profile and engine.speculation is not None and engine.speculation.adaptive:
        engine.speculation.set_costs(profile_costs(engine))
    return engine


def _runner(loaded: LoadedModel, config: EngineConfig, num_blocks: int) -> ModelRunner:
    model = loaded.model
    kv = PagedKV(loaded.shapes, num_blocks, config.block_size, model.dtype, model.device)
    speculative = config.speculative_config
    return ModelRunner(model, kv, max_padded_query=1 + (speculative.num_speculative_tokens if speculative else 0))


def _speculation(
    speculative: SpeculativeConfig, config: EngineConfig, runners: list[ModelRunner], target: LoadedModel
) -> Speculation:
    drafter = StandaloneDrafter(runners[1], target.vocab_size, greedy=speculative.draft_sample_method == "greedy")
    return Speculation(speculative, drafter, config.max_num_seqs, config.max_num_batched_tokens, target.model.device)


def _dtype_name(target: LoadedModel) -> str:
    """The target's dtype, in which the drafter computes too."""
    return str(target.model.dtype).removeprefix("torch.")
