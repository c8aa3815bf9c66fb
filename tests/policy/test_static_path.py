"""The per-step path never reads a tensor on the host: it runs on tensors that hold no numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from adaverify.policy import (
    CostCurve,
    CostTable,
    MaterializedCosts,
    OnlineAcceptanceEstimator,
    Outlook,
    admit,
    choose_budget,
    choose_depth,
    log_odds_of_max,
    survival,
    valid_prefix,
    worth_another_pass,
)

R, K, V = 6, 4, 50


class Step:
    """One engine step's worth of policy, on preallocated inputs."""

    def __init__(self, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(0)
        self.estimator = OnlineAcceptanceEstimator(K, device=device, refit_interval=1)
        self.logits = torch.randn(R, K, V, generator=generator).to(device)
        self.temperature = torch.rand(R, 1, generator=generator).expand(R, K).to(device)
        self.num_drafts = torch.tensor([4, 3, 0, 2, 4, 1], device=device)
        self.stale = torch.rand(R, K, generator=generator).cumprod(dim=1).to(device)
        self.counts = [torch.tensor(value, device=device) for value in (R, R, R, 14)]
        self.accepted = torch.tensor([2, 3, 0, 0, 4, 1], device=device)
        self.mask = torch.tensor([True, True, True, False, True, True], device=device)
        curve = CostCurve((1, 8, 16, 30), (10.0, 12.0, 18.0, 30.0))
        draft = CostCurve((1, 8), (1.0, 2.0)), CostCurve((1, 8), (0.3, 0.5))
        self.costs = CostTable(curve, *draft).materialize(R, 64, device, num_speculative_tokens=K)
        self.outlook = Outlook(K, device)

    def run(self) -> tuple[Tensor, ...]:
        features = log_odds_of_max(self.logits, self.temperature)
        confidences = self.estimator.predict(features)
        first = self.estimator.predict_at(features[:, 0], 0)
        sampling, requests, non_draft, most = self.counts
        budget = choose_budget(self.stale, sampling, requests, non_draft, self.costs, most)
        depth = choose_depth(self.outlook.expect(self.stale), sampling, requests, non_draft, self.costs, most)
        drafted = torch.arange(K, device=self.stale.device) < depth.depth
        self.outlook.observe(self.stale, confidences, drafted.expand(R, K))
        live = survival(confidences, self.num_drafts)
        price = self.costs.draft[1, 1]
        goes_on = worth_another_pass(live[:, 0], self.outlook.mean[1], depth.rate, price, price, trims_later=True)
        admitted = admit(live, valid_prefix(confidences, self.num_drafts), budget)
        self.estimator.observe(features, confidences, admitted, torch.minimum(self.accepted, admitted), self.mask)
        self.estimator.end_step()
        fit = self.estimator.slope, self.estimator.intercepts, self.outlook.mean, self.outlook.persistence
        return confidences, first, budget, admitted, *depth, goes_on, *fit


def make_fake(step: Step, mode: FakeTensorMode) -> None:
    for holder in (step, step.estimator, step.outlook):
        for name, value in list(vars(holder).items()):
            if isinstance(value, Tensor):
                setattr(holder, name, mode.from_tensor(value))
    step.counts = [mode.from_tensor(count) for count in step.counts]
    step.costs = MaterializedCosts(*(mode.from_tensor(table) for table in step.costs))


def test_runs_without_numbers_and_with_the_shapes_of_the_real_run() -> None:
    expected = Step().run()
    fake = Step()
    with FakeTensorMode() as mode:
        make_fake(fake, mode)
        outputs = fake.run()
    assert fake.estimator.num_refits == 1
    for output, real in zip(outputs, expected, strict=True):
        assert (output.shape, output.dtype) == (real.shape, real.dtype)
    assert int(expected[3].sum()) == int(expected[2]) > 0


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x[x.argmax()],
    ],
)
def test_the_check_notices_every_kind_of_read(reads: Callable[[Tensor], object]) -> None:
    with FakeTensorMode() as mode, pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        reads(mode.from_tensor(torch.ones(4)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")
def test_a_cuda_graph_holds_the_step() -> None:
    eager, captured = Step("cuda"), Step("cuda")
    eager.run()  # A graph is captured after warm-up.
    torch.cuda.synchronize()
    eager, graph = Step("cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = captured.run()
    for _ in range(3):
        expected = eager.run()
        graph.replay()
    for output, real in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, real)
