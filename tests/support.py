"""Tiny models and tokenizers that tests of several folders share."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from adaverify import LLM
from adaverify.outputs import RequestOutput
from adaverify.policy.cost import CostCurve, CostTable

# milliseconds of an invented machine on which an extra token costs enough that most drafts are not worth it
TRIMMING_COSTS = CostTable(verify=CostCurve((1, 64), (1.0, 16.0)), draft=CostCurve((1, 64), (0.1, 0.2)))


@dataclass(frozen=True)
class Pair:
    """Folders of a target and its drafter."""

    target: Path
    drafter: Path
    method: str = "draft_model"

    def llm(
        self,
        costs: CostTable | None = TRIMMING_COSTS,
        k: int = 3,
        sampling: str = "probabilistic",
        speculative: dict[str, Any] | None = None,
        **options: Any,
    ) -> LLM:
        """Both with adaptive verification, in float32; without ``costs`` every draft is verified.

        ``speculative`` holds further keys of the speculative configuration.
        """
        config = {
            "method": self.method,
            "model": str(self.drafter),
            "num_speculative_tokens": k,
            "draft_sample_method": sampling,
            "enable_adaptive_verification": costs is not None,
            # drafts of every depth, whatever the invented costs: see tests/engine/test_draft_depth.py for the other
            "adaptive_draft_depth": False,
            # what steps take on the machine that runs the tests must not decide anything
            "live_costs": False,
        }
        # measuring them would take longer than most tests
        with mock.patch("adaverify.engine.factory.profile_costs", return_value=costs):
            return plain_llm(self.target, speculative_config=config | (speculative or {}), **options)


def plain_llm(folder: Path, **options: Any) -> LLM:
    """A small engine in float32."""
    defaults = {"dtype": "float32", "max_num_seqs": 16, "max_num_batched_tokens": 128, "block_size": 4}
    return LLM(str(folder), **(defaults | options))


def generate_greedy(folder: Path, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """What transformers' own ``generate`` gives, prompt by prompt."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens, pad_token_id=0
        )
        texts.append(out[0, len(prompt) :].tolist())
    return texts


def random_prompts(count: int, vocab_size: int, longest: int = 12, seed: int = 0) -> list[list[int]]:
    """Prompts of 1 to ``longest`` tokens without the special ones."""
    dice = random.Random(seed)
    return [[dice.randrange(vocab_size - 2) for _ in range(dice.randint(1, longest))] for _ in range(count)]


def token_ids(outputs: list[RequestOutput]) -> list[list[int]]:
    """Tokens of the first completion of each request."""
    return [output.outputs[0].token_ids for output in outputs]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Tokens 0 to 255 are bytes (see ``pre_tokenizers.ByteLevel``), 256 is <eos>: characters span tokens."""
    vocab = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def save_tokenizer(folder: Path, vocab_size: int) -> None:
    """Words w0, w1, ... as tokens 0, 1, ...; the last two are <unk> and <eos>."""
    words = [f"w{i}" for i in range(vocab_size - 2)] + ["<unk>", "<eos>"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<eos>").save_pretrained(folder)


def save_tiny_model(
    folder: Path, seed: int, vocab_size: int = 16, scale: float = 1.0, max_positions: int = 128, padded_vocab: int = 0
) -> Path:
    """A random two-layer Llama; a larger ``scale`` makes its distributions sharper; <unk> is never the likeliest."""
    config = LlamaConfig(
        vocab_size=vocab_size + padded_vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_positions,
        eos_token_id=vocab_size - 1,
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
        model.lm_head.weight.mul_(scale)
        model.lm_head.weight[vocab_size - 2] = 0.0
    model.save_pretrained(folder)
    save_tokenizer(folder, vocab_size)
    return folder


def save_tiny_gpt2(folder: Path, seed: int, vocab_size: int = 32, max_positions: int = 32) -> Path:
    """A random two-layer GPT-2: its positions are learned, so there is none beyond ``max_positions``."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=max_positions, n_embd=32, n_layer=2, n_head=4, eos_token_id=vocab_size - 1
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    save_tokenizer(folder, vocab_size)
    return folder


def save_related_model(folder: Path, source: Path, noise: float, seed: int) -> Path:
    """A drafter: ``source`` with noise on its weights."""
    model = AutoModelForCausalLM.from_pretrained(source)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * noise)
    model.save_pretrained(folder)
    for file in source.glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    return folder
