"""What the tests of the bench share: prompts, settings, and measurements made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from adaverify.config import SpeculativeConfig
from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.settings import Asking, Settings
from adaverify.lab.bench.workload import read_workloads

BASE = SpeculativeConfig(method="draft_model", model="d", num_speculative_tokens=3, enable_adaptive_verification=True)
FIXED = BASE.model_copy(update={"enable_adaptive_verification": False})


def prompt_file(folder: Path, name: str, count: int) -> Path:
    """JSONL of ``count`` prompts, each with its file's name and its number."""
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"turns": [f"{name} {i}", "more"]}) + "\n" for i in range(count)))
    return path


def settings(folder: Path, arms: tuple[Arm, ...], **changes: Any) -> Settings:
    """Two loads of one workload, two passes, four tokens an answer."""
    values: dict[str, Any] = {
        "arms": arms,
        "workloads": read_workloads([str(prompt_file(folder, "maths", 40))], apart=False),
        "loads": (Load(1), Load(3)),
        "asking": Asking(output_len=4, ignore_eos=True),
        "passes": 2,
        "baseline": arms[0].name,
        "num_prompts": 4,
        "prompts_per_seat": 2,
        "num_warmups": 2,
    }
    return Settings(**(values | changes))


def cell(arm: str, pass_number: int, throughput: float, user: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A measurement at load 1 of the workload maths."""
    return {
        "pass": pass_number,
        "workload": "maths",
        "load": "1",
        "arm": arm,
        "failed": 0,
        "steady_output_throughput": throughput,
        "tokens_per_second_per_user": user,
        "median_ttft_ms": 5.0,
        "p99_ttft_ms": 9.0,
        "other_cpu_share": 0.0,
        **changes,
    }
