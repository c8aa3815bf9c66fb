from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from support import save_tiny_model

TEMPLATE = (
    "{% for m in messages %}w1 {{ 'w2' if m['role'] == 'user' else 'w3' }} {{ m['content'] }} w4 {% endfor %}"
    "{% if add_generation_prompt %}w1 w3 {% endif %}"
)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target that can chat."""
    folder = save_tiny_model(tmp_path_factory.mktemp("training") / "tiny-target", seed=3, vocab_size=48, scale=2.0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty questions of two words, every fourth with a second turn."""
    path = tmp_path_factory.mktemp("prompts") / "questions.jsonl"
    rows = []
    for i in range(40):
        turns = [f"w{5 + i % 20} w{6 + i // 2}", "w7 w8"] if i % 4 == 0 else [f"w{5 + i % 20} w{6 + i // 2}"]
        rows.append({"id": str(i), "turns": turns})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
