from __future__ import annotations

import pytest
import torch

from adaverify.sampling import (
    SamplingParams,
    SamplingTensors,
    draw_drafts,
    filtered_probabilities,
    processors,
    sample_from,
)
from adaverify.sampling.processors import draft_temperature

MAX_U = 1 - 2.0**-53


def logits(rows, vocab, scale=3.0, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def run(x, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    n = len(x)

    def column(value, dtype):
        return torch.as_tensor(value, dtype=dtype).expand(n)

    return filtered_probabilities(
        x,
        column(temperature, torch.float32),
        column(top_k, torch.int64),
        column(top_p, torch.float64),
        column(min_p, torch.float64),
    )


def reference(row, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """One row by the definition: sort everything, keep ties with each threshold."""
    p = torch.softmax(row / temperature, -1)
    keep = p >= p.max() * min_p
    if 0 < top_k < len(p):
        keep &= p >= p.sort(descending=True).values[top_k - 1]
    if top_p < 1:
        mass = 0.0
        total = p[keep].double().sum().item() if top_k > 0 or min_p > 0 else 1.0
        for value in p[keep].sort(descending=True).values.tolist():
            mass += value
            if mass >= top_p * total:
                keep &= p >= value
                break
    kept = p.double() * keep
    return (kept / kept.sum()).float()


SETTINGS = [
    {},
    {"temperature": 0.6},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 1023},
    {"top_k": 1024},
    {"top_k": 2500},
    {"top_p": 0.9},
    {"top_p": 0.01},
    {"top_p": 0.9999},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 1e-5, "top_p": 0.99},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 400, "top_p": 0.95, "temperature": 3.0},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.02, "temperature": 1.5},
    {"top_p": 0.95, "temperature": 4.0},  # the nucleus is wider than the first window
    {"top_k": -1},
    {"top_k": 10**6},
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("vocab", [7, 1024, 6000])
def test_matches_the_definition_row_by_row(setting, vocab):
    x = logits(4, vocab)
    p = run(x, **setting)
    for row, expected in zip(p, (reference(row, **setting) for row in x), strict=True):
        assert torch.equal(row > 0, expected > 0)
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-9)


def test_a_row_does_not_depend_on_the_rest_of_the_batch():
    settings = [setting for setting in SETTINGS if setting.get("top_k") != 10**6]
    x = logits(len(settings), 6000)
    columns = {
        name: [setting.get(name, neutral) for setting in settings]
        for name, neutral in {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}.items()
    }
    together = run(x, **columns)
    for row, alone in enumerate(settings):
        assert torch.equal(together[row], run(x[row : row + 1], **alone)[0]), alone


@pytest.mark.parametrize("setting", [{"top_k": 2}, {"top_p": 0.4}, {"top_k": 2, "top_p": 0.3}])
def test_everything_tied_with_the_threshold_is_kept(setting):
    x = torch.tensor([[0.1, 0.25, 0.3, 0.1, 0.25]]).log()
    x = torch.cat((x, x.flip(-1)))
    kept = run(x, **setting) > 0
    wanted = torch.tensor([False, "top_p" not in setting or "top_k" not in setting, True, False, False])
    wanted[4] = wanted[1]
    assert torch.equal(kept[0], wanted)
    assert torch.equal(kept[1], wanted.flip(-1))


@pytest.mark.parametrize("setting", [{"top_k": 5}, {"top_p": 0.2}, {"top_k": 5, "top_p": 0.5}, {"min_p": 0.9}])
def test_ties_wider_than_the_window_are_all_kept(setting):
    x = torch.zeros(1, 6000)
    x[0, 4500:] = -20.0
    p = run(x, **setting)
    assert (p > 0).nonzero()[:, 1].tolist() == list(range(4500))
    assert p[0, 0].item() == pytest.approx(1 / 4500, rel=1e-5)


def test_top_p_counts_the_mass_that_top_k_and_min_p_left():
    x = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert (run(x, top_p=0.55, top_k=2) > 0).tolist() == [[True, False, False, False]]
    assert (run(x, top_p=0.55, min_p=0.6) > 0).tolist() == [[True, False, False, False]]
    assert (run(x, top_p=0.55) > 0).tolist() == [[True, True, False, False]]


def test_logits_are_left_alone():
    x = logits(2, 500)
    before = x.clone()
    run(x, temperature=0.5, top_k=3, top_p=0.5, min_p=0.1)
    assert torch.equal(x, before)


def test_forbidden_tokens_stay_at_zero_even_if_fewer_than_k_are_left():
    x = torch.full((1, 50), -torch.inf)
    x[0, [4, 9]] = torch.tensor([1.0, 2.0])
    assert (run(x, top_k=5, top_p=0.999) > 0).nonzero()[:, 1].tolist() == [4, 9]


@pytest.mark.parametrize("temperature", [1e-39, 1e-8, 1e30])
def test_extreme_temperatures_stay_finite(temperature):
    p = run(logits(2, 300), temperature=temperature, top_p=0.9)
    torch.testing.assert_close(p.sum(-1), torch.ones(2))


def test_plain_rows_are_not_partitioned(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a filter ran that nobody asked for")

    monkeypatch.setattr(processors, "keep_most_likely_", refuse)
    run(logits(2, 300), temperature=0.7)
    with pytest.raises(AssertionError, match="nobody"):
        run(logits(2, 300), top_p=0.9)


def test_non_finite_rows_are_nan_and_harm_no_other():
    x = logits(4, 600)
    x[1, 5], x[2, 3] = torch.nan, torch.inf
    x[3] = -torch.inf
    for setting in ({}, {"top_p": 0.9}, {"top_k": 4}):
        p = run(x, **setting)
        assert torch.equal(p[0], run(x[:1], **setting)[0])
        assert p[1:].isnan().any(-1).all()


@pytest.mark.parametrize("vocab", [5, 256, 257, 900])
def test_sampling_inverts_the_distribution_function(vocab):
    probs = torch.softmax(logits(1, vocab, scale=1.0), -1)
    grid = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    tokens = torch.cat([sample_from(probs.expand(len(part), -1), part) for part in grid.split(2_000)])
    assert (tokens.diff() >= 0).all()
    shares = tokens.bincount(minlength=vocab) / len(grid)
    torch.testing.assert_close(shares, probs[0], atol=5.1e-5, rtol=0)


@pytest.mark.parametrize("u", [0.0, 2.0**-53, 0.25, 0.5, MAX_U, 1.0])
@pytest.mark.parametrize("positive", [[0], [3], [256], [1023], [2, 255, 256, 700], [300, 301]])
def test_a_token_of_zero_probability_is_never_drawn(u, positive):
    probs = torch.zeros(1, 1024)
    probs[0, positive] = 1.0
    token = sample_from(probs, torch.tensor([u], dtype=torch.float64)).item()
    assert token in positive
    if u == 0.0:
        assert token == positive[0]
    if u >= MAX_U:
        assert token == positive[-1]


def test_no_edge_of_the_distribution_function_hits_a_zero():
    generator = torch.Generator().manual_seed(1)
    probs = torch.softmax(logits(2000, 64, scale=6.0), -1) * (torch.rand(2000, 64, generator=generator) < 0.3)
    probs[:, 7] += 1e-9
    edges = probs.double().cumsum(-1) / probs.double().sum(-1, keepdim=True)
    for column in (0, 6, 7, 20, 40, 62, 63):
        for u in (edges[:, column], edges[:, column].nextafter(torch.zeros(1).double())):
            tokens = sample_from(probs, u.clamp(0, 1))
            assert (probs.gather(-1, tokens.unsqueeze(-1)) > 0).all()


def test_rows_without_mass_or_not_finite_give_some_token():
    probs = torch.tensor([[0.0, 0.0], [torch.nan, 1.0], [torch.nan, torch.nan], [torch.inf, 1.0]])
    for u in (0.0, 0.5, MAX_U):
        tokens = sample_from(probs, torch.full((4,), u, dtype=torch.float64))
        assert ((tokens >= 0) & (tokens < 2)).all()


def test_sampling_does_not_need_normalised_weights():
    weights = torch.tensor([[1.0, 3.0]])
    u = torch.tensor([0.249, 0.251], dtype=torch.float64)
    assert sample_from(weights.expand(2, -1), u).tolist() == [0, 1]


def params_of(*settings):
    return SamplingTensors.from_params([SamplingParams(**s) for s in settings], list(range(len(settings))), "cpu")


def test_tensors_are_neutral_for_greedy_requests():
    tensors = params_of(
        {"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.1},
        {"temperature": 0.7, "top_k": -1, "top_p": 0.9, "min_p": 0.2},
    )
    assert tensors.greedy.tolist() == [True, False]
    assert tensors.temperature.tolist() == pytest.approx([1.0, 0.7])
    assert tensors.top_k.tolist() == [0, 0]
    assert tensors.top_p.tolist() == [1.0, 0.9]
    assert tensors.min_p.tolist() == [0.0, 0.2]
    assert tensors.seeds.tolist() == [0, 1]


def test_drafts_are_drawn_from_the_law_that_is_returned():
    sampling = params_of({"temperature": 0.7, "top_k": 4}, {"temperature": 0.0}, {"top_p": 0.8, "min_p": 0.01})
    x = logits(3, 40)
    x[1, [6, 9]] = 30.0
    u = torch.tensor([0.3, 0.9, 0.6], dtype=torch.float64)
    tokens, q = draw_drafts(x, sampling, u)
    torch.testing.assert_close(q[0], reference(x[0], temperature=0.7 / 1.12, top_k=4))
    torch.testing.assert_close(q[2], reference(x[2], temperature=1 / 1.3, top_p=0.8, min_p=0.01))
    assert tokens[1].item() == 6
    assert tokens[[0, 2]].tolist() == sample_from(q, u)[[0, 2]].tolist()


def test_greedy_drafts_cost_no_distribution(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a distribution that nobody reads")

    monkeypatch.setattr(processors, "filtered_probabilities", refuse)
    x = logits(2, 40)
    tokens, q = draw_drafts(x, params_of({"temperature": 0.0}, {"temperature": 0.0}), torch.zeros(2).double())
    assert torch.equal(tokens, x.argmax(-1))
    assert q.shape == x.shape


def test_drafts_are_drawn_colder_where_the_target_is_hot():
    temperatures = torch.tensor([0.2, 0.5, 0.75, 1.0, 1.6])
    expected = torch.tensor([0.2, 0.5, 0.75 / 1.15, 1 / 1.3, 1.6 / 1.3])
    torch.testing.assert_close(draft_temperature(temperatures), expected)
