from __future__ import annotations

import pytest
import torch

from adaverify.sampling import verify_greedy, verify_standard

NAN, INF = float("nan"), float("inf")
P = torch.tensor([0.1, 0.2, 0.3, 0.4])
Q = torch.tensor([0.4, 0.1, 0.3, 0.2])
FINE_GRID = (torch.arange(3_000, dtype=torch.float64) + 0.5) / 3_000


def long(*values):
    return torch.tensor(values, dtype=torch.int64)


def standard(
    p, drafts, q=None, q_index=None, u_accept=0.5, u_target=0.5, num_drafts=None, bad_row=None, row_start=None
):
    """Verify with rows shared by all requests unless ``row_start`` says otherwise; scalars are broadcast."""
    drafts = torch.as_tensor(drafts, dtype=torch.int64)
    count, width = drafts.shape

    def spread(u, columns):
        u = torch.as_tensor(u, dtype=torch.float64)
        return (u.unsqueeze(-1) if u.dim() == 1 else u).expand(count, columns)

    return verify_standard(
        p,
        torch.zeros(len(p), dtype=torch.bool) if bad_row is None else torch.tensor(bad_row),
        torch.zeros(count, dtype=torch.int64) if row_start is None else row_start,
        drafts,
        torch.full((count,), width) if num_drafts is None else num_drafts,
        q,
        torch.arange(width).expand(count, -1) if q_index is None else q_index,
        spread(u_accept, width),
        spread(u_target, width + 1),
    )


def emitted_law(p, q, drafted):
    """Law of the first emitted token when drafts follow ``drafted``: drafts and coin enumerated on fine grids."""
    rows = torch.stack((p, torch.full_like(p, 1 / len(p))))
    law = torch.zeros(len(p), dtype=torch.float64)
    for x, chance in enumerate(drafted.tolist()):
        drafts = torch.full((len(FINE_GRID), 1), x)
        laws = None if q is None else q.unsqueeze(0)
        accepted = (standard(rows, drafts, laws, u_accept=FINE_GRID).num_accepted == 1).double().mean()
        law[x] += chance * accepted
        if accepted < 1:
            outcome = standard(rows, drafts, laws, u_accept=1 - 2.0**-53, u_target=FINE_GRID)
            assert (outcome.num_accepted == 0).all()
            shares = outcome.next_token.bincount(minlength=len(p)) / len(FINE_GRID)
            law += chance * (1 - accepted) * shares
    return law


@pytest.mark.parametrize("p", [P, torch.tensor([0.0, 0.5, 0.5, 0.0]), torch.tensor([0.25, 0.25, 0.25, 0.25])])
@pytest.mark.parametrize("q", [Q, torch.tensor([0.7, 0.3, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 1.0])])
def test_the_emitted_token_follows_the_target(p, q):
    torch.testing.assert_close(emitted_law(p, q, drafted=q), p.double(), atol=1e-3, rtol=0)


def test_the_law_check_notices_a_wrong_q():
    assert (emitted_law(P, Q, drafted=Q.flip(0)) - P).abs().max() > 0.05


@pytest.mark.parametrize("drafted", [Q, torch.tensor([0.0, 0.0, 1.0, 0.0])])
def test_one_hot_drafts_follow_the_target_however_they_were_chosen(drafted):
    torch.testing.assert_close(emitted_law(P, None, drafted), P.double(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("q", [torch.full((4,), NAN), torch.tensor([0.0, 0.0, 0.0, 0.0]), torch.full((4,), INF)])
def test_drafts_without_a_usable_law_are_rejected_and_the_target_decides(q):
    rows = torch.stack((P, P))
    outcome = standard(rows, torch.full((1, 1), 3), q.unsqueeze(0), u_accept=0.0)
    assert outcome.num_accepted.tolist() == [0]
    torch.testing.assert_close(emitted_law(P, q, drafted=Q), P.double(), atol=1e-3, rtol=0)


def test_acceptance_is_strict_below_the_ratio():
    rows = torch.stack((torch.tensor([0.25, 0.75]), torch.tensor([1.0, 0.0])))
    q = torch.tensor([[0.5, 0.5]])
    u = torch.tensor([0.0, 0.4999, 0.5, 0.9], dtype=torch.float64)
    outcome = standard(rows, torch.zeros(4, 1), q, u_accept=u)
    assert outcome.num_accepted.tolist() == [1, 1, 0, 0]
    assert outcome.next_token.tolist() == [0, 0, 1, 1]


def test_a_token_the_target_forbids_is_never_accepted():
    rows = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    for q in (torch.tensor([[1.0, 0.0]]), None):
        outcome = standard(rows, [[0]], q, u_accept=0.0, u_target=0.0)
        assert (outcome.num_accepted.item(), outcome.next_token.item()) == (0, 1)


@pytest.mark.parametrize(("u", "token"), [(0.0, 0), (0.3, 0), (0.4, 1), (1 - 2.0**-53, 1)])
def test_the_rejected_token_is_not_emitted_when_the_residual_is_unusable(u, token):
    p = torch.tensor([[0.1, 0.2, 0.7]])
    no_mass = torch.tensor([[0.2, 0.3, 0.8]])
    partly_nan = torch.tensor([[NAN, 0.2, 0.9]])
    for q in (no_mass, partly_nan):
        outcome = standard(p.repeat(2, 1), [[2]], q, u_accept=0.99, u_target=u)
        assert (outcome.num_accepted.item(), outcome.next_token.item()) == (0, token)


def test_the_rejected_token_is_emitted_if_the_target_has_no_other():
    p = torch.tensor([[0.0, 0.9999999, 0.0]])
    for q in (None, torch.tensor([[0.0, 1.0, 0.0]])):
        outcome = standard(p.repeat(2, 1), [[1]], q, u_accept=1 - 2.0**-53)
        assert (outcome.num_accepted.item(), outcome.next_token.item()) == (0, 1)


def test_accepts_a_prefix_then_draws_from_the_row_of_the_first_rejection():
    p = torch.eye(4)[[0, 1, 2, 3]] * 0.9 + 0.025
    drafts = [[0, 1, 2], [0, 3, 2], [3, 1, 2]]
    outcome = standard(p, drafts, u_accept=0.5, u_target=0.5)
    assert outcome.num_accepted.tolist() == [3, 1, 0]
    assert outcome.next_token.tolist() == [3, 1, 0]


def test_each_draft_is_compared_with_its_own_row_of_q():
    q = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    p = torch.tensor([[0.3, 0.7], [0.3, 0.7], [0.5, 0.5]])
    q_index = torch.tensor([[0, 1], [1, 0], [-1, -1]])
    outcome = standard(p, [[0, 0], [0, 0], [0, 0]], q, q_index, torch.tensor([0.4, 0.4, 0.32]), u_target=0.9)
    # .4 > .3/.9; .4 < .3/.1, then .4 > .3/.9; one-hot: .32 > .3
    assert outcome.num_accepted.tolist() == [0, 1, 0]
    assert outcome.next_token.tolist() == [1, 1, 1]


def test_one_hot_residuals_ignore_the_laws_of_other_drafts():
    p = torch.tensor([[0.5, 0.25, 0.25]] * 2)
    q = torch.tensor([[0.0, 1.0, 0.0]])
    outcome = standard(p, [[0]], q, torch.tensor([[-1]]), u_accept=0.6, u_target=0.4)
    assert (outcome.num_accepted.item(), outcome.next_token.item()) == (0, 1)


def test_the_uniform_of_the_emitting_position_is_used():
    p = torch.tensor([[0.5, 0.5]] * 3)
    u_target = torch.tensor([[0.1, 0.9, 0.1]] * 2, dtype=torch.float64)
    outcome = standard(p, [[0, 0], [0, 0]], num_drafts=long(1, 2), u_accept=0.0, u_target=u_target)
    assert outcome.num_accepted.tolist() == [1, 2]
    assert outcome.next_token.tolist() == [1, 0]


def test_ragged_requests_and_requests_without_drafts():
    p = torch.eye(3)[[0, 1, 2, 0, 1]]
    outcome = standard(p, [[0, 1], [0, 0], [0, 0]], num_drafts=long(2, 0, 0), row_start=long(0, 3, 4), u_accept=0.5)
    assert outcome.num_accepted.tolist() == [2, 0, 0]
    assert outcome.next_token.tolist() == [2, 0, 1]
    alone = standard(p[3:], torch.zeros(2, 0), row_start=long(0, 1))
    assert alone.next_token.tolist() == [0, 1]


def test_a_bad_row_rejects_its_draft_and_fails_only_the_request_that_emits_from_it():
    p = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [NAN, NAN]])
    bad = [False, True, False, False, False, True]
    drafts = torch.zeros(2, 2, dtype=torch.int64)
    reached = standard(p, drafts, row_start=long(0, 3), bad_row=bad, u_accept=0.0)
    assert reached.num_accepted.tolist() == [1, 2]
    assert reached.failed.tolist() == [True, True]
    not_reached = standard(p, drafts, row_start=long(0, 3), bad_row=bad, u_accept=0.9)
    assert not_reached.num_accepted.tolist() == [0, 0]
    assert not_reached.failed.tolist() == [False, False]


def test_q_is_never_copied_as_a_whole(monkeypatch):
    q = torch.softmax(torch.randn(64, 50, generator=torch.Generator().manual_seed(0)), -1)
    p = torch.softmax(torch.randn(5, 50, generator=torch.Generator().manual_seed(1)), -1)
    largest = []
    real = torch.Tensor.__getitem__
    monkeypatch.setattr(
        torch.Tensor, "__getitem__", lambda self, key: largest.append(out := real(self, key)) or out, raising=True
    )
    standard(p, [[1, 2, 3, 4]], q, u_accept=0.99)
    assert max(out.numel() for out in largest) <= 50


def test_greedy_accepts_the_most_likely_tokens():
    target = long(5, 6, 7, 1, 9)
    drafts = torch.tensor([[5, 6], [2, 0], [0, 0]])
    outcome = verify_greedy(target, torch.zeros(5, dtype=torch.bool), long(0, 3, 4), drafts, long(2, 0, 0))
    assert outcome.num_accepted.tolist() == [2, 0, 0]
    assert outcome.next_token.tolist() == [7, 1, 9]
    rejected = verify_greedy(target, torch.zeros(5, dtype=torch.bool), long(0), torch.tensor([[4, 6]]), long(2))
    assert (rejected.num_accepted.item(), rejected.next_token.item()) == (0, 5)


def test_greedy_ignores_padding_even_if_it_matches():
    target = long(0, 0, 3)
    outcome = verify_greedy(target, torch.zeros(3, dtype=torch.bool), long(0, 2), long(0, 0).view(2, 1), long(1, 0))
    assert outcome.num_accepted.tolist() == [1, 0]


def test_greedy_fails_only_the_request_that_emits_from_a_bad_row():
    target = long(5, 6, 7, 8)
    bad = torch.tensor([False, True, False, False])
    outcome = verify_greedy(target, bad, long(0, 2), torch.tensor([[5, 6], [0, 0]]), long(1, 1))
    assert outcome.num_accepted.tolist() == [1, 0]
    assert outcome.failed.tolist() == [True, False]
