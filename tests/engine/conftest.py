from __future__ import annotations

import pytest
from tests.support import Pair, generate_greedy, random_prompts

from adaverify import SamplingParams

PROMPTS = random_prompts(16, vocab_size=48)
MAX_TOKENS = 24


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    return PROMPTS


@pytest.fixture(scope="session")
def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)


@pytest.fixture(scope="session")
def reference(pair: Pair) -> list[list[int]]:
    """What transformers' ``generate`` answers to ``prompts``."""
    return generate_greedy(pair.target, PROMPTS, MAX_TOKENS)
