"""The estimator against the kernels of vLLM's class of the same name.

Runs where vLLM and Triton can be imported; ``ADAVERIFY_VLLM_PYTHON`` may name another interpreter that has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from adaverify.policy import OnlineAcceptanceEstimator, log_odds_of_max

STEPS, R, K, V = 500, 4, 5, 64


def interpreter() -> str | None:
    if find_spec("vllm") and find_spec("triton"):
        return sys.executable
    return os.environ.get("ADAVERIFY_VLLM_PYTHON")


def recorded_inputs() -> dict[str, np.ndarray]:
    """Draft logits from flat to peaked, and outcomes that follow them, of 500 steps."""
    generator = torch.Generator().manual_seed(0)
    sharpness = torch.rand(STEPS, R, K, 1, generator=generator) * 4
    logits = torch.randn(STEPS, R, K, V, generator=generator) * sharpness
    temperature = torch.tensor([0.0, 1.0, 0.7, 1.5]).repeat(R // 4)
    features = log_odds_of_max(logits, temperature[:, None])
    chance = torch.sigmoid(0.65 * features + torch.linspace(1.2, -0.3, K))
    hit = torch.rand(STEPS, R, K, generator=generator) < chance
    admitted = torch.randint(0, K + 1, (STEPS, R), generator=generator)
    accepted = torch.minimum(hit.long().cumprod(dim=-1).sum(dim=-1), admitted)
    tensors = {
        "logits": logits,
        "temperature": temperature,
        "admitted": admitted.int(),
        "accepted": accepted.int(),
    }
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def our_run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    logits, temperature, admitted, accepted = (torch.from_numpy(values) for values in inputs.values())
    estimator = OnlineAcceptanceEstimator(K)
    predictions, coefficients = [], []
    for step in range(STEPS):
        features = log_odds_of_max(logits[step], temperature[:, None])
        predictions.append(estimator.predict(features))
        estimator.observe(features, predictions[-1], admitted[step], accepted[step])
        estimator.end_step()
        coefficients.append(torch.cat([estimator.slope.view(1), estimator.intercepts]))
    return {
        "predictions": torch.stack(predictions).numpy(),
        "coefficients": torch.stack(coefficients).numpy(),
    }


@pytest.mark.slow
def test_matches_vllm_s_kernels_over_500_steps(tmp_path: Path) -> None:
    python = interpreter()
    if python is None:
        pytest.skip("vllm and triton are not importable, and ADAVERIFY_VLLM_PYTHON names no interpreter that has them")
    inputs = recorded_inputs()
    np.savez(tmp_path / "inputs.npz", **inputs)
    script = Path(__file__).with_name("vllm_estimator.py")
    command = [python, str(script), str(tmp_path / "inputs.npz"), str(tmp_path / "outputs.npz")]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    theirs, ours = np.load(tmp_path / "outputs.npz"), our_run(inputs)
    # Five refits that moved every coefficient, or the comparison says little.
    assert len(np.unique(ours["coefficients"][:, 0])) == 6
    assert np.abs(ours["coefficients"][-1] - ours["coefficients"][0]).min() > 0.05
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], rtol=0, atol=1e-4, err_msg=name)
