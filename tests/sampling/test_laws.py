"""Laws over some of the tokens against the same laws over all of them."""

from __future__ import annotations

import pytest
import torch
from tests.sampling.test_verification import standard

from adaverify.sampling import SampleRequest, SamplingParams, sample
from adaverify.sampling.laws import DraftLaws

VOCAB, WIDTH, ROWS = 12, 5, 6
COLUMNS = {
    "shared": torch.tensor([1, 3, 4, 8, 11]),
    "own": torch.stack(
        [torch.randperm(VOCAB, generator=torch.Generator().manual_seed(i))[:WIDTH] for i in range(ROWS)]
    ),
}


def random_rows(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(-1)


def laws_of(kind: str) -> tuple[DraftLaws, torch.Tensor]:
    """Laws, and the same as a table over the whole vocabulary; token 0 of the law is impossible in some rows."""
    q = random_rows(ROWS, WIDTH, seed=1)
    q[::2, 0] = 0.0
    if kind == "whole":
        q = random_rows(ROWS, VOCAB, seed=1)
        return DraftLaws(q), q
    columns = COLUMNS[kind]
    return DraftLaws(q, columns), torch.zeros(ROWS, VOCAB).scatter(-1, columns.expand(ROWS, -1), q)


@pytest.mark.parametrize("kind", ["whole", "shared", "own"])
def test_probabilities_and_differences_are_those_of_the_table(kind):
    laws, table = laws_of(kind)
    rows = torch.arange(ROWS)[:, None].expand(-1, VOCAB)
    assert torch.equal(laws.of(rows, torch.arange(VOCAB).expand(ROWS, -1)), table)
    order = torch.tensor([4, 0, 4, 2])
    weights = random_rows(4, VOCAB, seed=2)
    expected = weights - table[order]
    laws.subtract_from(weights, order)
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("kind", ["whole", "shared", "own"])
def test_verification_is_exactly_that_of_the_table(kind):
    """Every draft at every row of the laws, one-hot ones between them, over a grid of coins."""
    laws, table = laws_of(kind)
    count = 400
    dice = torch.Generator().manual_seed(3)
    p = random_rows(4, VOCAB, seed=4)
    drafts = torch.randint(VOCAB, (count, 3), generator=dice)
    q_index = torch.randint(-1, ROWS, (count, 3), generator=dice)
    coins = {
        "u_accept": torch.rand(count, 3, generator=dice).double(),
        "u_target": torch.rand(count, 4, generator=dice).double(),
    }
    outcome = standard(p, drafts, laws, q_index, **coins)
    expected = standard(p, drafts, table, q_index, **coins)
    for ours, theirs in zip(outcome, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert set(outcome.num_accepted.tolist()) == {0, 1, 2, 3}
    # the table of another row would have been noticed
    shifted = standard(p, drafts, table.roll(1, 0), q_index, **coins)
    assert not torch.equal(shifted.num_accepted, outcome.num_accepted)


@pytest.mark.parametrize("kind", ["shared", "own"])
def test_the_sampler_takes_laws_for_the_table(kind):
    laws, table = laws_of(kind)
    logits = random_rows(9, VOCAB, seed=5).log()
    requests = [
        SampleRequest(SamplingParams(temperature=1.0), seed, (1,), (2,), [3, 8], start, frozenset())
        for seed, start in ((1, 0), (2, 4), (3, 2))
    ]
    assert sample(logits.clone(), requests, laws) == sample(logits.clone(), requests, table)


def test_columns_must_fit():
    q = random_rows(ROWS, WIDTH, seed=1)
    assert DraftLaws(q, COLUMNS["own"]).fits(VOCAB)
    assert DraftLaws(q).fits(WIDTH)
    assert not DraftLaws(q).fits(VOCAB)
    assert not DraftLaws(q, COLUMNS["shared"]).fits(WIDTH - 1)
    assert not DraftLaws(q, COLUMNS["shared"][:3]).fits(VOCAB)
