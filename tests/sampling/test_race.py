from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from adaverify.sampling import race
from adaverify.sampling.noise import position_keys, times
from adaverify.sampling.race import MAX_LEAD, race_candidates, run_race


def keys_of(count: int, seed: int = 3) -> torch.Tensor:
    return position_keys(torch.tensor([seed]), torch.arange(count).unsqueeze(0))[0]


def laws(kind: str, rows: int, vocab: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(rows, vocab, generator=generator)
    if kind == "flat":
        return (0.1 * logits).softmax(-1)
    if kind == "peaked":
        logits[torch.arange(rows), torch.randint(vocab, (rows,), generator=generator)] += 15
        return (3 * logits).softmax(-1)
    if kind == "sparse":
        p = (3 * logits).softmax(-1)
        return p * (p >= p.topk(min(5, vocab)).values[:, -1:])
    return (3 * logits - torch.arange(vocab).add(1).log()).softmax(-1)


def over_all(weights: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = weights.double() / times(keys.unsqueeze(-1), torch.arange(weights.shape[-1]))
    best = scores.topk(2).values.log()
    return scores.argmax(-1), (best[:, 0] - best[:, 1]).clamp(max=MAX_LEAD).float()


@pytest.mark.parametrize("kind", ["flat", "peaked", "sparse", "zipf"])
@pytest.mark.parametrize("vocab", [2, 48, 255, 256, 257, 700, 9000, 12800])
def test_the_winner_is_that_over_all_tokens(kind, vocab):
    """Whatever was left out: short vocabularies, last blocks that are short, and slices of rows."""
    weights, keys = laws(kind, 40, vocab), keys_of(40)
    winners, leads = over_all(weights, keys)
    assert torch.equal(run_race(weights, keys).tokens, winners)
    raced = run_race(weights, keys, with_leads=True)
    assert torch.equal(raced.tokens, winners)
    torch.testing.assert_close(raced.leads, leads)
    columns, among = race_candidates(weights, keys, torch.arange(vocab).expand(40, -1))
    assert torch.equal(columns, winners)
    torch.testing.assert_close(among, leads)


def test_rows_in_slices_are_the_same_rows(monkeypatch):
    weights, keys = laws("zipf", 23, 9000), keys_of(23)
    whole = run_race(weights, keys, with_leads=True)
    monkeypatch.setattr(race, "_SLICE_ELEMENTS", 45000)
    sliced = run_race(weights, keys, with_leads=True)
    assert torch.equal(whole.tokens, sliced.tokens)
    assert torch.equal(whole.leads, sliced.leads)


def test_few_tokens_need_their_own_draws(monkeypatch):
    """What makes it cheap: of 40 x 12800 times a few thousand are drawn."""
    drawn = []
    behind = race.times_behind
    monkeypatch.setattr(race, "times_behind", lambda *args: drawn.append(args[1].numel()) or behind(*args))
    for kind in ("zipf", "flat", "peaked"):
        drawn.clear()
        run_race(laws(kind, 40, 12800), keys_of(40), with_leads=True)
        assert 40 <= sum(drawn) < 40 * 12800 / 10


@pytest.mark.parametrize("vocab", [6, 600])
def test_winners_follow_the_law(vocab):
    law = torch.zeros(vocab)
    law[torch.arange(6) * (vocab // 6)] = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.04, 0.01])
    count = 20000
    tokens = run_race(law.expand(count, -1), keys_of(count)).tokens
    seen = tokens.bincount(minlength=vocab)
    assert seen[law == 0].sum() == 0
    assert stats.chisquare(seen[law > 0].numpy(), law[law > 0].double().numpy() * count).pvalue > 1e-3


def test_the_lead_is_exponential_of_two_equals_and_limited_for_one_alone():
    """Two tokens of the same weight: |log E1 - log E2| has the logistic law."""
    weights = torch.zeros(8000, 300)
    weights[:, [7, 290]] = 0.5
    leads = run_race(weights, keys_of(8000), with_leads=True).leads
    assert stats.kstest(leads.numpy(), stats.halflogistic.cdf).pvalue > 1e-3
    alone = run_race(torch.eye(300)[[5]], keys_of(1), with_leads=True)
    assert (alone.tokens.item(), alone.leads.item()) == (5, MAX_LEAD)


@pytest.mark.parametrize("vocab", [48, 9000])
def test_a_bad_row_stays_by_itself(vocab):
    weights, keys = laws("zipf", 5, vocab), keys_of(5)
    expected = run_race(weights, keys, with_leads=True)
    weights[1] = math.nan
    weights[3] = 0.0
    raced = run_race(weights, keys, with_leads=True)
    good = [0, 2, 4]
    assert torch.equal(raced.tokens[good], expected.tokens[good])
    assert torch.equal(raced.leads[good], expected.leads[good])
    assert raced.leads[[1, 3]].isnan().all()
    assert ((raced.tokens >= 0) & (raced.tokens < vocab)).all()
    columns, leads = race_candidates(weights, keys, torch.arange(vocab).expand(5, -1))
    assert torch.equal(columns[good], expected.tokens[good])
    assert leads[[1, 3]].isnan().all()
