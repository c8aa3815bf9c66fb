from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from adaverify.policy.exactness import (
    AuditResult,
    Block,
    Case,
    NoiseSource,
    Pair,
    Setting,
    audit_case,
    audit_cases,
    audit_exactness,
    enumerate_output,
    fixed_pair,
    law_of,
    random_pair,
    target_law,
    total_variation,
)
from adaverify.policy.exactness.cases import estimator_rule
from adaverify.policy.exactness.race import EVERYTHING, area, race, win_by
from adaverify.policy.exactness.rules import EstimatorScore, PrefixRule
from adaverify.policy.exactness.worlds import one_request, two_requests

CASES = {case.rule: case for case in audit_cases()}
EXACT = [rule for rule, case in CASES.items() if case.expected == "exact"]
BIASED = [rule for rule, case in CASES.items() if case.expected == "biased"]


def law_of_rule(rule: str) -> dict[tuple[tuple[int, ...], ...], float]:
    (setting,) = CASES[rule].settings
    return {texts: float(chance) for texts, chance in setting.enumerate().law.items()}


def first_request(law: dict[tuple[tuple[int, ...], ...], float]) -> list[float]:
    return [sum(chance for texts, chance in law.items() if texts[0][0] == token) for token in (0, 1)]


@pytest.mark.parametrize("rule", EXACT)
def test_shipped_rules_are_exact(rule: str) -> None:
    result = audit_case(CASES[rule])
    assert result.max_tv <= 1e-12
    assert result.verdict == "pass"


@pytest.mark.parametrize("rule", BIASED)
def test_forbidden_rules_are_caught(rule: str) -> None:
    result = audit_case(CASES[rule])
    assert result.max_tv > 1e-3
    assert result.verdict == "pass"


def test_the_audit_runs_every_case_once() -> None:
    results = audit_exactness()
    assert [result.rule for result in results] == list(CASES)
    assert len(CASES) == len(audit_cases())
    assert {result.verdict for result in results} == {"pass"}
    assert all(isinstance(result, AuditResult) for result in results)


def test_scoring_the_drawn_token_gives_four_to_six() -> None:
    assert law_of_rule("trim by the drawn token's q") == {((0,),): 0.4, ((1,),): 0.6}


def test_a_fresh_budget_gives_85_to_15() -> None:
    assert law_of_rule("fresh budget, autoregressive drafter") == {((0,),): 0.85, ((1,),): 0.15}


def test_a_bound_that_knows_what_is_finite_gives_85_to_15() -> None:
    assert law_of_rule("budget bounded by the drafts found finite") == {((0,),): 0.85, ((1,),): 0.15}


def test_deeper_slots_first_give_775_to_225() -> None:
    law = law_of_rule("ties by deeper position")
    assert first_request(law) == pytest.approx([0.775, 0.225])
    assert first_request({(second, first): chance for (first, second), chance in law.items()}) == pytest.approx(
        [0.775, 0.225]
    )


def test_a_budget_searched_over_the_drafts_made_gives_85_to_15() -> None:
    rule = "budget searched over the drafts made before an early stop"
    assert law_of_rule(rule) == pytest.approx({((0,),): 0.85, ((1,),): 0.15})


def test_an_early_stop_where_drafts_compete_gives_55_to_45() -> None:
    # token 0: never verified, so drawn from p; token 1: accepted .3 / .5 of the time
    law = law_of_rule("early stop where drafts compete")
    assert first_request(law) == pytest.approx([0.5 * 0.7 + 0.5 * 0.4, 0.5 * 0.3 + 0.5 * 0.6])
    assert first_request(law_of_rule("no early stop where drafts compete")) == pytest.approx([0.7, 0.3])


def test_reused_draft_noise_biases_the_second_token_only() -> None:
    law = law_of_rule("draft noise keyed by position alone")
    assert first_request(law) == pytest.approx([0.3, 0.7])
    assert sum(chance for texts, chance in law.items() if texts[0][1] == 0) != pytest.approx(0.3, abs=1e-3)


def test_noise_shared_by_requests_biases_the_one_that_is_ranked() -> None:
    # token 0 of the first request: .25 * .3 where its draft is left out, .25 * .6 where it is verified and accepted
    assert first_request(law_of_rule("draft noise shared by requests of one seed")) == pytest.approx([0.225, 0.775])
    assert first_request(law_of_rule("draft noise of each request's own")) == pytest.approx([0.3, 0.7])


def without_budget_from_the_past(setting: Setting) -> Setting:
    return replace(setting, rule=replace(setting.rule, fresh=True))  # type: ignore[type-var]


@pytest.mark.parametrize("setting", [*one_request(estimator_rule), *two_requests(estimator_rule)])
def test_the_worlds_would_show_a_bias(setting: Setting) -> None:
    fresh = without_budget_from_the_past(setting)
    assert setting.distance(setting.enumerate()) == 0
    assert fresh.distance(fresh.enumerate()) > 1e-3


def test_verdicts_are_computed() -> None:
    exact, biased = CASES["stale budget, DSpark example"], CASES["fresh budget, autoregressive drafter"]
    assert audit_case(replace(exact, expected="biased")).verdict == "fail"
    assert audit_case(replace(biased, expected="exact")).verdict == "fail"


@pytest.mark.parametrize("length", [0.0, 1.0])
def test_a_rule_that_never_decides_is_inconclusive(length: float) -> None:
    rule = PrefixRule(lambda block, depth: length)
    case = Case("constant", "exact", (Setting((random_pair(0),), rule, 2, 2),))
    assert audit_case(case).verdict == "inconclusive"


def test_the_learning_rule_learns_from_accepted_and_rejected_drafts() -> None:
    score = EstimatorScore(2, learns=True)
    q = law_of("3/4", "1/4")
    block = Block((0, 0), (q, q), (q, q))
    hopeful = score.learn(score.start(), (block,), (2,), (2,))
    sobered = score.learn(score.start(), (block,), (2,), (0,))
    assert score.confidences(hopeful, block)[0] > score.confidences(score.start(), block)[0]
    assert score.confidences(sobered, block)[0] < score.confidences(score.start(), block)[0]


def test_target_law_multiplies_the_next_token_laws_and_the_requests() -> None:
    after = {(): law_of(".7", ".3"), (0,): law_of(".2", ".8"), (1,): law_of("1", "0")}
    pair = Pair(after.__getitem__, lambda text, drawn: law_of(".5", ".5"))
    single = target_law((pair,), 2)
    assert single == {
        ((0, 0),): Fraction("0.14"),
        ((0, 1),): Fraction("0.56"),
        ((1, 0),): Fraction("0.3"),
    }
    assert target_law((pair, pair), 2)[(0, 1), (1, 0)] == Fraction("0.56") * Fraction("0.3")


def test_total_variation() -> None:
    first = {((0,),): Fraction("0.7"), ((1,),): Fraction("0.3")}
    second = {((0,),): Fraction("0.5"), ((2,),): Fraction("0.5")}
    assert total_variation(first, second) == Fraction("0.5")
    assert total_variation(first, first) == 0


def test_laws_sum_to_one_whatever_the_rule() -> None:
    for rule in BIASED:
        for setting in CASES[rule].settings:
            assert sum(setting.enumerate().law.values()) == 1


@pytest.mark.parametrize("key", [lambda position, depth: position, lambda position, depth: (position, depth)])
def test_keyed_noise_alone_biases_nothing(key: object) -> None:
    pair = fixed_pair(law_of("1/3", "2/3"), law_of("3/4", "1/4"))
    source = NoiseSource(key, levels=4)  # type: ignore[arg-type]
    everything = PrefixRule(lambda block, depth: 1.0)
    assert enumerate_output((pair,), everything, 2, 3, source).law == target_law((pair,), 3)


def test_noise_levels_must_fit_the_laws() -> None:
    pair = fixed_pair(law_of(".5", ".5"), law_of("1/3", "2/3"))
    with pytest.raises(ValueError, match="more levels"):
        enumerate_output((pair,), PrefixRule(lambda block, depth: 1.0), 1, 1, NoiseSource(lambda *_: 0, levels=4))


def test_races_over_the_triangle_have_the_chances_of_the_laws_and_of_the_coupling() -> None:
    p, q = law_of(".2", ".5", ".3"), law_of(".6", ".1", ".3")
    assert {token: chance for chance, token, _ in race(EVERYTHING, q)} == dict(enumerate(q))
    assert area(EVERYTHING) == Fraction(1, 2)
    met = sum(chance * again for chance, x, region in race(EVERYTHING, q) for again, y, _ in race(region, p) if x == y)
    # sum over v of 1 / sum over w of max(p_w / p_v, q_w / q_v)
    assert met == sum(1 / sum(max(p[w] / p[v], q[w] / q[v]) for w in range(3)) for v in range(3))


def test_a_race_of_two_is_decided_by_their_share() -> None:
    (_, first, region), (_, second, _) = race(EVERYTHING, law_of("1/4", "3/4"))
    assert (first, second) == (0, 1)
    # what wins with a quarter wins with any more
    assert [(chance, token) for chance, token, _ in race(region, law_of("1/3", "2/3"))] == [(1, 0)]
    assert [(chance, token) for chance, token, _ in race(region, law_of("1/8", "7/8"))] == [
        (Fraction(1, 2), 0),
        (Fraction(1, 2), 1),
    ]


def test_margins_of_a_race_split_it_and_follow_the_closed_form() -> None:
    q = law_of(".6", ".1", ".3")
    for _, token, region in race(EVERYTHING, q):
        parts = win_by(region, q, token, Fraction(3))
        assert sum(chance for chance, _, _ in parts) == 1
        # wins even if all other weights are three times as large
        wide = q[token] / (q[token] + 3 * (1 - q[token])) / q[token]
        assert sum(chance for chance, is_wide, _ in parts if is_wide) == wide


def test_coupled_text_is_exact_while_the_same_rule_is_biased_with_standard_verification() -> None:
    standard, coupled = CASES["trim by the drawn token's q"], CASES["coupled: trim by the drawn token's q"]
    (first,), (second,) = standard.settings, coupled.settings
    assert first.rule == second.rule
    assert first.pairs == second.pairs
    assert audit_case(standard).max_tv == pytest.approx(0.1)
    assert audit_case(coupled).max_tv == 0
