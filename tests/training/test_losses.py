from __future__ import annotations

import torch
import torch.nn.functional as F

from adaverify.training.losses import kl_divergence, total_variation


def test_divergence_and_its_gradient_are_torchs():
    torch.manual_seed(0)
    logits = torch.randn(3, 70, 33, requires_grad=True)
    targets = torch.randn(3, 70, 33) * 2
    weights = torch.rand(3, 70)
    expected = F.kl_div(logits.log_softmax(-1), targets.softmax(-1), reduction="none").sum(-1)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), logits)
    actual = kl_divergence(logits, targets)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad((actual * weights).sum(), logits)
    torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-6)


def test_total_variation_is_half_the_distance():
    torch.manual_seed(0)
    logits, targets = torch.randn(2, 90, 12), torch.randn(2, 90, 12)
    expected = (logits.softmax(-1) - targets.softmax(-1)).abs().sum(-1) / 2
    torch.testing.assert_close(total_variation(logits, targets), expected, rtol=1e-5, atol=1e-6)
