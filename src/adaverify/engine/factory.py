"""Builds an engine from its configuration: models, KV pools, drafter, measured costs."""

from __future__ import annotations

from adaverify.config import EngineConfig
from adaverify.drafters.load import load_drafter
from adaverify.engine import loader
from adaverify.engine.block_pool import BlockPool
from adaverify.engine.engine import Engine
from adaverify.engine.estimator_state import load_state
from adaverify.engine.fused import fuse_projections
from adaverify.engine.huge_pages import use_huge_pages
from adaverify.engine.kv_cache import PagedKV
from adaverify.engine.loader import LoadedModel
from adaverify.engine.packed import pack_linears, packs
from adaverify.engine.profiling import profile_costs
from adaverify.engine.runner import ModelRunner
from adaverify.engine.speculation import Speculation
from adaverify.engine.taps import HiddenTaps


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
    drafter = load_drafter(speculative, target, tokenizer) if speculative is not None else None
    limits = {config.model: target.max_positions}
    if speculative is not None and drafter is not None:
        limits[speculative.model] = drafter.max_positions
    max_len = loader.max_model_len(config, limits)
    bytes_per_token = target.bytes_per_token + (drafter.bytes_per_token if drafter else 0)
    num_blocks = loader.num_kv_blocks(config, max_len, device, bytes_per_token)
    max_len = min(max_len, (num_blocks - 1) * config.block_size)
    config = config.model_copy(
        update={
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "device": device.type,
            "max_model_len": max_len,
            "num_kv_blocks": num_blocks - 1,
        }
    )
    speculation = None
    if speculative is not None and drafter is not None:
        speculation = Speculation(
            speculative, drafter.build(num_blocks, config), config.max_num_seqs, config.max_num_batched_tokens, device
        )
        if speculative.estimator_state is not None:
            load_state(speculative.estimator_state, speculation.estimator, config)
    networks = [target.model, *([drafter.network] if drafter else [])]
    if packs(target.model):
        fuse_projections(target.model)
    pack_linears(*networks)
    use_huge_pages(*networks)
    engine = Engine(
        config=config,
        tokenizer=tokenizer,
        runner=_target_runner(target, config, num_blocks, drafter.tap_layer_ids if drafter else ()),
        pool=BlockPool(num_blocks, config.block_size, config.enable_prefix_caching),
        max_model_len=max_len,
        eos_token_ids=target.eos_token_ids,
        speculation=speculation,
    )
    if profile and speculation is not None and speculation.adaptive:
        speculation.set_costs(profile_costs(engine))
    return engine


def _target_runner(
    target: LoadedModel, config: EngineConfig, num_blocks: int, tap_layer_ids: tuple[int, ...]
) -> ModelRunner:
    model, speculative = target.model, config.speculative_config
    kv = PagedKV(target.shapes, num_blocks, config.block_size, model.dtype, model.device)
    padded = 1 + (speculative.num_speculative_tokens if speculative else 0)
    return ModelRunner(model, kv, padded, HiddenTaps(model, tap_layer_ids) if tap_layer_ids else None)
