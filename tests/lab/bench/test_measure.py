from __future__ import annotations

import json

import numpy as np
import pytest

from adaverify.lab.bench.client import Answer
from adaverify.lab.bench.drive import Traffic
from adaverify.lab.bench.measure import figures, tokens_until, user_speed

PERCENTILES = (50, 90, 99)


def random_answers(count: int) -> list[Answer]:
    dice = np.random.default_rng(1)
    answers = []
    for i in range(count):
        sent = dice.uniform(0, 5)
        times = sent + np.cumsum(dice.exponential(0.1, size=dice.integers(2, 20)))
        name = "maths" if i % 3 else "chat"
        answers.append(Answer(name, sent, times[-1], tuple(times.tolist()), 7, 2 * len(times)))
    return answers


def test_percentiles_are_numpys():
    answers = random_answers(40)
    found = figures(Traffic(tuple(answers), 0.0, 6.0, 9.0), PERCENTILES)
    samples = {
        "ttft": [1e3 * (one.deliveries[0] - one.sent) for one in answers],
        "tpot": [1e3 * (one.deliveries[-1] - one.deliveries[0]) / (one.output_tokens - 1) for one in answers],
        "itl": [1e3 * gap for one in answers for gap in np.diff(one.deliveries)],
        "e2el": [1e3 * (one.deliveries[-1] - one.sent) for one in answers],
    }
    for name, values in samples.items():
        assert found[f"mean_{name}_ms"] == pytest.approx(np.mean(values))
        assert found[f"median_{name}_ms"] == pytest.approx(np.median(values))
        for percentile in PERCENTILES:
            assert found[f"p{percentile}_{name}_ms"] == pytest.approx(np.percentile(values, percentile))


def test_throughput_counts_good_answers_alone():
    good = Answer("maths", 0.0, 4.0, (1.0, 2.0, 3.0, 4.0), 7, 8)
    bad = Answer("maths", 0.0, 9.0, (1.0,), 7, 100, error="broke off")
    found = figures(Traffic((good, bad, bad), 0.0, 4.0, 10.0), PERCENTILES)
    assert (found["completed"], found["failed"], found["errors"]) == (1, 2, ["broke off"])
    assert found["output_throughput"] == pytest.approx(0.8)
    assert found["request_throughput"] == pytest.approx(0.1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (7, 8)


def test_steady_throughput_ends_with_the_load():
    answers = (Answer("maths", 0.0, 4.0, (1.0, 2.0, 3.0, 4.0), 7, 8), Answer("maths", 0.0, 2.0, (1.0, 2.0), 7, 2))
    found = figures(Traffic(answers, 0.0, 2.0, 4.0), PERCENTILES)
    # four of eight tokens, and both of two
    assert found["steady_output_throughput"] == pytest.approx((4 + 2) / 2)
    assert tokens_until(answers[0], 2.5) == pytest.approx(4)


def test_the_speed_of_a_user_is_that_of_the_text_while_the_load_lasted():
    early = Answer("maths", 0.0, 3.0, (1.0, 2.0, 3.0), 7, 6)
    late = Answer("maths", 0.0, 10.0, (1.0, 2.0, 9.0, 10.0), 7, 8)
    assert user_speed([early], 3.0) == pytest.approx(2.0)
    # what came after the load fell, seconds 9 and 10, counts for nothing
    assert user_speed([late], 3.0) == pytest.approx(2.0)
    assert user_speed([late], 1.5) is None


def test_datasets_of_a_mixture_are_told_apart():
    answers = random_answers(30)
    found = figures(Traffic(tuple(answers), 0.0, 6.0, 9.0), (50,))
    maths = [one for one in answers if one.dataset == "maths"]
    expected = np.median([1e3 * (one.deliveries[0] - one.sent) for one in maths])
    assert found["datasets"]["maths"]["median_ttft_ms"] == pytest.approx(expected)
    assert found["datasets"]["maths"]["completed"] + found["datasets"]["chat"]["completed"] == 30


def test_a_measurement_in_which_all_failed_is_valid_json():
    bad = Answer("maths", 0.0, 1.0, error="HTTP 500")
    found = figures(Traffic((bad,), 0.0, 1.0, 1.0), PERCENTILES)
    assert json.loads(json.dumps(found, allow_nan=False))["p99_ttft_ms"] is None
    assert found["tokens_per_second_per_user"] is None
