"""Run vLLM's OnlineAcceptanceEstimator under Triton's interpreter on recorded inputs.

``python vllm_estimator.py INPUTS.npz OUTPUTS.npz``, with ``TRITON_INTERPRET=1``, in an environment that has vLLM and
Triton. vLLM's CPU wheel puts placeholders in the place of Triton, so the real one is put back before its kernels load.
"""

from __future__ import annotations

import sys
import types

import numpy as np
import torch
import triton
import triton.language as tl


def load_estimator_class() -> type:
    real = types.ModuleType("vllm.triton_utils")
    real.HAS_TRITON = True
    real.triton, real.tl, real.tldevice = triton, tl, tl.extra
    sys.modules["vllm.triton_utils"] = real
    from vllm.v1.worker.gpu.spec_decode.acceptance_estimator import OnlineAcceptanceEstimator

    return OnlineAcceptanceEstimator


def main(inputs_path: str, outputs_path: str) -> None:
    inputs = {name: torch.from_numpy(values) for name, values in np.load(inputs_path).items()}
    logits = inputs["logits"]
    steps, R, K, V = logits.shape
    estimator = load_estimator_class()(R, K, torch.device("cpu"))
    rows = torch.arange(R, dtype=torch.int32)
    depths = torch.arange(K, dtype=torch.int32).repeat(R)
    predictions = torch.zeros(steps, R, K)
    coefficients = []
    for step in range(steps):
        # All positions in one call: each request owns K consecutive rows of logits.
        estimator.predict(
            logits[step].reshape(R * K, V),
            rows.repeat_interleave(K),
            depths,
            predictions[step],
            inputs["temperature"],
        )
        accepted, admitted = inputs["accepted"][step], inputs["admitted"][step]
        estimator.step(rows, accepted + 1, admitted - accepted)
        coefficients.append(torch.cat([estimator.slope, estimator.intercepts]))
    np.savez(outputs_path, predictions=predictions.numpy(), coefficients=torch.stack(coefficients).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
