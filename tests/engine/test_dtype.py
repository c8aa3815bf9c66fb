"""``dtype: auto`` is the checkpoint's, but never one that the processor would only imitate."""

from __future__ import annotations

import pytest
import torch
from tests.support import plain_llm
from transformers import AutoModelForCausalLM

from adaverify.engine import dtype
from adaverify.engine.dtype import has_instructions, resolve_dtype

CPU = torch.device("cpu")
OLD = {"architecture": "x86_64", "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}


@pytest.fixture
def processor(monkeypatch):
    def give(**capabilities):
        monkeypatch.setattr(dtype, "_capabilities", lambda: capabilities)

    return give


@pytest.mark.parametrize(
    ("capabilities", "name", "native"),
    [
        (OLD, "bfloat16", False),
        (OLD | {"avx512_bf16": True}, "bfloat16", True),
        (OLD | {"amx_bf16": True}, "bfloat16", True),
        (OLD | {"avx512_bf16": True}, "float16", False),
        (OLD | {"avx512_fp16": True}, "float16", True),
        (OLD, "float32", True),
        ({"architecture": "aarch64"}, "bfloat16", True),
        ({}, "bfloat16", True),
    ],
)
def test_instructions_are_told_from_what_torch_knows(processor, capabilities, name, native):
    processor(**capabilities)
    assert has_instructions(getattr(torch, name)) is native


def test_what_would_be_imitated_becomes_float32(processor):
    processor(**OLD)
    assert resolve_dtype("auto", torch.bfloat16, CPU) is torch.float32
    processor(**OLD | {"avx512_bf16": True})
    assert resolve_dtype("auto", torch.bfloat16, CPU) == "auto"


def test_what_was_asked_for_is_obeyed_and_other_devices_are_not_judged(processor):
    processor(**OLD)
    assert resolve_dtype("bfloat16", torch.bfloat16, CPU) == "bfloat16"
    assert resolve_dtype("auto", torch.bfloat16, torch.device("cuda")) == "auto"
    assert resolve_dtype("auto", None, CPU) == "auto"


def test_models_are_loaded_in_it(processor, pair, tmp_path):
    AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.bfloat16).save_pretrained(tmp_path)
    for name, capabilities in ((torch.float32, OLD), (torch.bfloat16, OLD | {"avx512_bf16": True})):
        processor(**capabilities)
        llm = plain_llm(tmp_path, tokenizer=str(pair.target), dtype="auto")
        assert llm.engine.runner.model.dtype == name
        assert llm.engine.runner.kv.layer(0).slots.dtype == name
