"""From logits to tokens: parameters, processed distributions, randomness and verification."""

from adaverify.sampling.coupled import race_drafts
from adaverify.sampling.logprobs import position_logprobs
from adaverify.sampling.noise import position_keys
from adaverify.sampling.params import SamplingParams
from adaverify.sampling.processors import SamplingTensors, draw_drafts, filtered_probabilities, sample_from
from adaverify.sampling.race import run_race
from adaverify.sampling.request import SampleRequest, SampleResult
from adaverify.sampling.rng import Purpose, derive_seed, uniforms
from adaverify.sampling.sampler import sample
from adaverify.sampling.token_rules import validate_token_ids
from adaverify.sampling.verification import Verification, verify_greedy, verify_standard

__all__ = [
    "Purpose",
    "SampleRequest",
    "SampleResult",
    "SamplingParams",
    "SamplingTensors",
    "Verification",
    "derive_seed",
    "draw_drafts",
    "filtered_probabilities",
    "position_keys",
    "position_logprobs",
    "race_drafts",
    "run_race",
    "sample",
    "sample_from",
    "uniforms",
    "validate_token_ids",
    "verify_greedy",
    "verify_standard",
]
