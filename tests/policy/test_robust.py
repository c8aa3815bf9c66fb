"""The robust estimator: it finds the law, and no traffic drives it out of the region where it can learn."""

import pytest
import torch

from adaverify.errors import ConfigError
from adaverify.policy import OnlineAcceptanceEstimator, RequestRows, RobustEstimator
from adaverify.policy.robust import COUPLED

K, N = 4, 16
SLOPE, INTERCEPTS = 0.6, torch.tensor([0.3, 0.0, -0.3, -0.6])


def rows(greedy=False):
    return RequestRows(torch.arange(N), torch.full((N,), greedy))


class Traffic:
    """Rounds of N requests whose drafts are accepted by a known law; all are verified."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)

    def round(self, offset=0.0, intercepts=INTERCEPTS, slope=SLOPE):
        features = 1.5 + 2.0 * torch.randn(N, K, generator=self.generator)
        chance = torch.sigmoid(slope * features + intercepts + torch.as_tensor(offset).view(-1, 1))
        accepted = torch.rand(N, K, generator=self.generator) < chance
        return features, chance, accepted.long().cumprod(dim=1).sum(dim=1)


def feed(estimator, features, num_accepted, requests=None, admitted=K, mask=None):
    requests = requests or rows()
    predictions = estimator.predict(features, requests)
    estimator.observe(features, predictions, torch.full((N,), admitted), num_accepted, mask, requests)
    estimator.end_step()
    return predictions


def error(estimator, traffic, num_steps=50, **law):
    """Mean distance of predictions from the law, as requests that nothing is known of."""
    distances = []
    for _ in range(num_steps):
        features, chance, _ = traffic.round(**law)
        distances.append((estimator.predict(features) - chance).abs().mean())
    return float(torch.stack(distances).mean())


def test_it_finds_the_law():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    before = error(estimator, traffic)
    for _ in range(600):
        features, _, accepted = traffic.round()
        feed(estimator, features, accepted)
    assert error(estimator, traffic) < 0.015 < before
    assert float(estimator.slope) == pytest.approx(SLOPE, abs=0.04)
    torch.testing.assert_close(estimator.intercepts, INTERCEPTS.double(), atol=0.12, rtol=0)


def test_a_position_without_labels_follows_the_others():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    for _ in range(300):
        features, _, accepted = traffic.round(intercepts=torch.full((K,), 1.5))
        feed(estimator, features, accepted.clamp(max=2), admitted=2)
    assert float(estimator.intercepts[3]) == pytest.approx(1.5, abs=0.3)
    score = torch.logit(estimator.predict(torch.zeros(1, K)))[0]
    torch.testing.assert_close(estimator.intercepts.float(), score, atol=0.02, rtol=0)


@pytest.mark.parametrize("all_rejected", [False, True])
def test_after_a_stretch_of_one_outcome_it_soon_predicts_ordinary_traffic_again(all_rejected):
    traffic, estimator, paper = Traffic(), RobustEstimator(K, N), OnlineAcceptanceEstimator(K)
    for _ in range(800):
        features, _, _ = traffic.round()
        accepted = torch.full((N,), 0 if all_rejected else K)
        feed(estimator, features + 4, accepted)
        feed(paper, features + 4, accepted)
    for _ in range(100):
        features, _, accepted = traffic.round()
        feed(estimator, features, accepted)
        feed(paper, features, accepted)
    assert error(estimator, traffic) < 0.06
    assert all_rejected or error(paper, traffic) > 0.2


def test_one_refit_moves_no_prediction_far():
    traffic, estimator = Traffic(), RobustEstimator(K, N, refit_interval=1, offset_deviation=0.0)
    last = None
    for step in range(60):
        features, _, accepted = traffic.round()
        feed(estimator, features, torch.full((N,), K) if step < 40 else accepted * 0)
        now = torch.logit(estimator.predict(torch.full((1, K), 1.5)))
        assert last is None or (now - last).abs().max() < 3
        last = now


def test_a_request_that_is_easier_than_the_others_is_believed_to_be():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    offset = torch.linspace(-1.5, 1.5, N)
    for _ in range(200):
        features, _, accepted = traffic.round(offset)
        feed(estimator, features, accepted)
    features, chance, _ = traffic.round(offset)
    known, unknown = estimator.predict(features, rows()), estimator.predict(features)
    assert (known - chance).abs().mean() < 0.6 * (unknown - chance).abs().mean()
    estimator.start(torch.arange(N))
    torch.testing.assert_close(estimator.predict(features, rows()), unknown)


def test_where_requests_do_not_differ_offsets_fade():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    for _ in range(1500):
        features, _, accepted = traffic.round()
        feed(estimator, features, accepted)
    assert float(estimator.offsets.value.abs().mean()) < 0.25
    assert float(estimator.offsets.prior) < 0.3


def test_greedy_and_sampled_requests_have_laws_of_their_own():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    half = torch.arange(N) % 2 == 0
    requests = RequestRows(torch.arange(N), half)
    for _ in range(500):
        features, _, accepted = traffic.round(torch.where(half, -1.5, 0.5))
        feed(estimator, features, accepted, requests)
    estimator.start(torch.arange(N))
    features, chance, _ = traffic.round(torch.where(half, -1.5, 0.5))
    assert (estimator.predict(features, requests) - chance).abs().mean() < 0.05
    expected = estimator.expected(torch.tensor([True, False]))
    assert (expected[0] < expected[1] - 0.1).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_feature_that_is_not_finite_leaves_no_trace(value):
    clean, dirty = (RobustEstimator(K, N, offset_deviation=0.0) for _ in range(2))
    traffic = Traffic()
    for _ in range(30):
        features, _, accepted = traffic.round()
        spoilt = features.clone()
        spoilt[3] = value
        feed(dirty, spoilt, accepted)
        feed(clean, features, accepted, mask=torch.arange(N) != 3)
    assert all(bool(tensor.isfinite().all()) for tensor in dirty.state_dict().values() if torch.is_tensor(tensor))
    torch.testing.assert_close(dirty.slopes, clean.slopes)
    torch.testing.assert_close(dirty.all_intercepts, clean.all_intercepts)


def test_labels_of_masked_requests_move_nothing_but_their_own_offset():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    tenant = torch.arange(N) < 8
    for _ in range(300):
        features, _, accepted = traffic.round()
        feed(estimator, features, torch.where(tenant, 0, accepted), mask=~tenant)
    assert error(estimator, traffic) < 0.03
    assert (estimator.offsets.value[:8] < -1).all()
    # the others do not differ: had the tenant a say in it, they would be taken to
    assert float(estimator.offsets.prior) < 0.5
    served = torch.stack([traffic.round()[1] for _ in range(50)]).mean(dim=(0, 1))
    assert float(estimator.expected(torch.tensor([False]))[0, 0]) == pytest.approx(float(served[0]), abs=0.05)


def test_where_features_mislead_the_slope_stays_at_zero_and_intercepts_fit():
    traffic, estimator = Traffic(), RobustEstimator(K, N, offset_deviation=0.0)
    law = {"slope": -0.3, "intercepts": torch.full((K,), 0.4)}
    predicted, chances = [], []
    for step in range(900):
        features, chance, accepted = traffic.round(**law)
        predictions = feed(estimator, features, accepted)
        if step >= 600:
            predicted.append(predictions[:, 0].mean())
            chances.append(chance[:, 0].mean())
    assert float(estimator.slope) == pytest.approx(0.0, abs=0.01)
    assert float(torch.stack(predicted).mean()) == pytest.approx(float(torch.stack(chances).mean()), abs=0.015)


def test_a_sudden_change_is_followed_sooner_than_the_long_memory_would():
    traffic = Traffic()
    mixed, slow = RobustEstimator(K, N), RobustEstimator(K, N, horizons=(64000.0,))
    for step in range(900):
        features, _, accepted = traffic.round(intercepts=INTERCEPTS + (1.0 if step < 800 else -2.0))
        feed(mixed, features, accepted)
        feed(slow, features, accepted)
    later = {"intercepts": INTERCEPTS - 2.0}
    assert error(mixed, traffic, **later) < 0.5 * error(slow, traffic, **later)


def test_the_mixture_weighs_memories_by_what_they_predicted():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    for _ in range(400):
        features, _, accepted = traffic.round()
        feed(estimator, features, accepted)
    assert estimator.weights.sum(dim=-1).tolist() == pytest.approx([1, 1])
    assert estimator.weights[0].argmax() > 0  # steady traffic: not the shortest


def test_one_position_is_predicted_as_in_the_whole():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    for _ in range(50):
        features, _, accepted = traffic.round()
        feed(estimator, features, accepted)
    whole = estimator.predict(features, rows())
    one = estimator.predict_at(features[:, 2], 2, rows())
    torch.testing.assert_close(whole[:, 2], one)


def test_memory_does_not_grow_and_a_kept_state_goes_on_alike():
    traffic, estimator = Traffic(), RobustEstimator(K, N)
    sizes = set()
    for _ in range(40):
        features, _, accepted = traffic.round()
        feed(estimator, features, accepted)
        sizes.add(sum(value.numel() for value in estimator.state_dict().values() if torch.is_tensor(value)))
    assert len(sizes) == 1
    warm = RobustEstimator(K, N)
    warm.load_state_dict(estimator.state_dict())
    torch.testing.assert_close(warm.predict(features), estimator.predict(features))
    feed(estimator, features, accepted)
    assert not torch.equal(warm.losses, estimator.losses)


def test_two_features_have_slopes_of_their_own():
    traffic, estimator = Traffic(), RobustEstimator(K, N, COUPLED)
    for _ in range(500):
        features, _, _ = traffic.round()
        margin = torch.rand(N, K, generator=traffic.generator) * 4
        chance = torch.sigmoid(0.4 * features + 0.7 * margin - 1.0)
        accepted = torch.rand(N, K, generator=traffic.generator) < chance
        both = torch.stack((features, margin), dim=-1)
        feed(estimator, both, accepted.long().cumprod(dim=1).sum(dim=1))
    slopes = (estimator.weights[..., None] * estimator.slopes).sum(dim=1)[0]
    torch.testing.assert_close(slopes[:2], torch.tensor([0.4, 0.7]).double(), atol=0.06, rtol=0)
    assert (estimator.predict(both) - chance).abs().mean() < 0.02
    one = estimator.predict_at(both[:, 1], 1, rows())
    torch.testing.assert_close(one, estimator.predict(both, rows())[:, 1])


def test_a_state_of_another_depth_is_refused():
    with pytest.raises(ConfigError, match=r"num_speculative_tokens = 4 needs"):
        RobustEstimator(4, N).load_state_dict(RobustEstimator(5, N).state_dict())
    with pytest.raises(ConfigError, match="lacks losses"):
        RobustEstimator(4, N).load_state_dict(
            {k: v for k, v in RobustEstimator(4, N).state_dict().items() if k != "losses"}
        )


@pytest.mark.parametrize(
    "change",
    [{"num_slots": 0}, {"refit_interval": 0}, {"horizons": ()}, {"offset_deviation": -1.0}, {"loss_memory": 0.5}],
)
def test_parameters_out_of_range_are_named(change):
    with pytest.raises(ConfigError, match=next(iter(change))):
        RobustEstimator(**({"num_speculative_tokens": K, "num_slots": N} | change))


def test_it_refits_after_the_first_steps_already():
    estimator = RobustEstimator(K, N, refit_interval=3)
    refits = []
    for _ in range(12):
        estimator.end_step()
        refits.append(estimator.num_refits)
    assert refits == [1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5]


def test_predictions_are_right_on_average_though_requests_differ() -> None:
    # requests that accept little have most labels, and the best known offsets
    torch.manual_seed(3)
    num_slots, chance = 64, torch.linspace(0.2, 0.8, 64)
    misses = {}
    for name, memory in (("with", 1000.0), ("without", 1e12)):
        estimator = RobustEstimator(K, num_slots, shift_memory=memory)
        if name == "without":
            estimator.shifts.information.fill_(1e12)
        requests = RequestRows(torch.arange(num_slots), torch.zeros(num_slots, dtype=torch.bool))
        lengths, generator = torch.zeros(num_slots), torch.Generator().manual_seed(1)
        missed = labels = 0.0
        for step in range(600):
            features = torch.zeros(num_slots, K)
            predictions = estimator.predict(features, requests)
            accepted = (
                (torch.rand(num_slots, K, generator=generator) < chance[:, None]).long().cumprod(dim=1).sum(dim=1)
            )
            estimator.observe(features, predictions, torch.full((num_slots,), K), accepted, requests=requests)
            estimator.end_step()
            if step >= 300:
                known = torch.arange(K) <= accepted[:, None]
                outcome = torch.arange(K) < accepted[:, None]
                missed += float((predictions - outcome.float())[known].sum())
                labels += float(known.sum())
            lengths += 1 + accepted
            over = (lengths > 40).nonzero().squeeze(-1)
            estimator.start(over)
            lengths[over] = 0
        misses[name] = abs(missed / labels)
    assert 3 * misses["with"] < misses["without"], misses


def test_certain_drafts_may_accept_more_than_log_odds_say() -> None:
    generator = torch.Generator().manual_seed(0)
    estimator = RobustEstimator(1, N)
    features = torch.zeros(0)
    for _ in range(400):
        features = torch.randn(N, 1, generator=generator) * 3
        chance = torch.sigmoid(0.4 * features + 0.4 * torch.nn.functional.softplus(features) - 0.8)
        feed(estimator, features, (torch.rand(N, 1, generator=generator) < chance).long()[:, 0])
    grid = torch.linspace(-5, 7, 25)[:, None]
    expected = torch.sigmoid(0.4 * grid + 0.4 * torch.nn.functional.softplus(grid) - 0.8)
    assert (estimator.predict(grid) - expected).abs().max() < 0.04


def alone(estimator, features, predictions, accepted):
    """The rounds of N requests one by one, as with one user."""
    for i in range(N):
        one = slice(i, i + 1)
        estimator.observe(features[one], predictions[one], torch.full((1,), K), accepted[one])


def test_rounds_of_one_user_are_learned_from_together_as_those_of_many_are():
    features, _, accepted = Traffic().round()
    one_user, many = RobustEstimator(K, N), RobustEstimator(K, N)
    predictions = many.predict(features)
    many.observe(features, predictions, torch.full((N,), K), accepted)
    alone(one_user, features, predictions, accepted)
    learned = one_user.state_dict()
    for name, expected in many.state_dict().items():
        torch.testing.assert_close(learned[name], expected, msg=name)


def test_rounds_that_wait_are_in_every_fit_and_every_copy():
    features, _, accepted = Traffic().round()
    few = (features[:2], torch.full((2, K), 0.5), torch.full((2,), K), accepted[:2])
    fitted, copied = RobustEstimator(K, N), RobustEstimator(K, N)
    fitted.observe(*few)
    assert fitted.labels.counts.sum() == 0
    fitted.refit()
    assert fitted.labels.counts.sum() > 0
    copied.observe(*few)
    assert copied.state_dict()["labels"].sum() > 0


def test_rounds_that_wait_do_not_mix_with_a_loaded_state():
    features, _, accepted = Traffic().round()
    estimator = RobustEstimator(K, N)
    state = estimator.state_dict()
    estimator.observe(features[:2], torch.full((2, K), 0.5), torch.full((2,), K), accepted[:2])
    estimator.load_state_dict(state)
    estimator.refit()
    assert estimator.labels.counts.sum() == 0
