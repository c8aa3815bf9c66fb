"""Real models against transformers' ``generate``; ``ADAVERIFY_PROMPTS`` and ``ADAVERIFY_TOKENS`` scale it up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support import Pair, generate_greedy, plain_llm, token_ids
from transformers import AutoTokenizer

from adaverify import SamplingParams
from adaverify.policy.cost import CostCurve, CostTable

pytestmark = pytest.mark.models

SUBJECTS = ["the sea", "a lighthouse", "prime numbers", "bread", "the moon", "chess", "rivers", "an old clock"]
FORMS = [
    "Write one sentence about {}.",
    "def describe():\n    # text about {}\n    return",
    "Question: what is known about {}?\nAnswer:",
    "Once upon a time there was {}, and",
    "Three facts on {}:\n1.",
    "Dear friend, today I thought of {} because",
    "{}, {}, {}: which of these does not belong?",
    "The history of {} begins in",
]
PROMPTS = [form.replace("{}", subject) for form in FORMS for subject in SUBJECTS]
QWEN = Path.home() / ".cache" / "adaverify" / "models"


def scale(prompts: int, tokens: int) -> tuple[list[str], int]:
    """Prompts spread over all forms, and tokens each."""
    count = int(os.environ.get("ADAVERIFY_PROMPTS", prompts))
    return [PROMPTS[i * 9 % len(PROMPTS)] for i in range(count)], int(os.environ.get("ADAVERIFY_TOKENS", tokens))


def ids(folder: Path, prompts: list[str]) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(prompt)["input_ids"] for prompt in prompts]


def test_smollm2_equals_generate(default_model_folder):
    prompts, max_tokens = scale(8, 24)
    expected = generate_greedy(default_model_folder, ids(default_model_folder, prompts), max_tokens)
    llm = plain_llm(default_model_folder, block_size=16, max_model_len=256)
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=max_tokens))
    assert token_ids(outputs) == expected
    for output in outputs:
        text = llm.tokenizer.decode(output.outputs[0].token_ids, skip_special_tokens=True)
        assert output.outputs[0].text == text


@pytest.fixture(scope="module")
def qwen() -> Pair:
    pair = Pair(QWEN / "qwen-1.5b", QWEN / "qwen-0.5b")
    if os.environ.get("CI"):
        pytest.skip("the Qwen pair is too large for CI")
    if not (pair.target / "config.json").exists() or not (pair.drafter / "config.json").exists():
        pytest.skip("the Qwen pair is not in the cache; `make models` fetches it")
    return pair


@pytest.fixture(scope="module")
def qwen_reference(qwen) -> tuple[list[str], int, list[list[int]]]:
    prompts, max_tokens = scale(4, 12)
    return prompts, max_tokens, generate_greedy(qwen.target, ids(qwen.target, prompts), max_tokens)


@pytest.mark.slow
def test_qwen_with_adaptive_verification_equals_generate(qwen, qwen_reference):
    prompts, max_tokens, expected = qwen_reference
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    # one engine, loaded once; the number of prompts handed over at a time sets the concurrency
    llm = qwen.llm(costs=None, k=6, block_size=16, max_model_len=256, max_num_seqs=16)
    llm.engine.speculation.adaptive = True
    llm.engine.speculation.set_costs(CostTable(verify=CostCurve((1, 16, 128), (60.0, 70.0, 300.0))))
    for concurrency in (1, 4, 16):
        if concurrency > max(4, len(prompts)):
            continue
        before = llm.stats()
        actual = []
        for start in range(0, len(prompts), concurrency):
            actual += token_ids(llm.generate(prompts[start : start + concurrency], params))
        assert actual == expected, f"concurrency {concurrency}"
        after = llm.stats()
        assert sum(after.accepted) > sum(before.accepted)
    assert sum(after.drafted) > sum(after.admitted), "nothing was trimmed"
