from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from adaverify.errors import ConfigError
from adaverify.training.optimizer import DraftOptimizer

TABLE = 100


def parameters() -> list[nn.Parameter]:
    shapes = [(32, 24), (24, 32), (32,), (TABLE, 16), (1, 32), (4, 4, 2)]
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def optimizer(params: list[nn.Parameter], **changes: float) -> DraftOptimizer:
    return DraftOptimizer(
        params,
        **({"learning_rate": 1e-3, "matrix_learning_rate": 0.02, "weight_decay": 0.0} | changes),
        table_size=TABLE,
    )


def give_gradients(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator)


def moved(matrix_learning_rate: float, learning_rate: float, factor: float = 1.0) -> list[bool]:
    params = parameters()
    before = [p.detach().clone() for p in params]
    give_gradients(params, 1)
    optimizer(params, matrix_learning_rate=matrix_learning_rate, learning_rate=learning_rate).step(factor)
    return [not torch.equal(p, old) for p, old in zip(params, before, strict=True)]


def test_matrices_go_by_one_rate_and_everything_else_by_the_other():
    assert moved(0.02, 0.0) == [True, True, False, False, False, False]
    assert moved(0.0, 1e-3) == [False, False, True, True, True, True]


def test_a_matrix_moves_evenly_in_all_directions():
    params = parameters()
    before = params[1].detach().clone()
    give_gradients(params, 1)
    optimizer(params).step(0.5)
    values = torch.linalg.svdvals(params[1].detach() - before)
    # Newton-Schulz leaves the singular values near 1, here times the rate and the factor
    assert values.min() > 0.5 * 0.01
    assert values.max() < 1.5 * 0.01


def test_the_factor_scales_both():
    assert moved(0.02, 1e-3, factor=0.0) == [False] * 6


def test_a_loaded_state_goes_on_alike():
    params, copies = parameters(), parameters()
    first, second = optimizer(params), optimizer(copies)
    for seed in range(3):
        give_gradients(params, seed)
        first.step(1.0)
    with torch.no_grad():
        for mine, p in zip(copies, params, strict=True):
            mine.copy_(p)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for one, these in ((first, params), (second, copies)):
        give_gradients(these, 7)
        one.step(1.0)
        one.zero_grad()
        assert all(p.grad is None for p in these)
    assert all(torch.equal(p, mine) for p, mine in zip(params, copies, strict=True))


def test_an_older_torch_is_told_what_it_lacks(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ConfigError, match=r"2\.9"):
        optimizer(parameters())
