from __future__ import annotations

import pytest
from tests.lab.bench.support import BASE, FIXED

from adaverify.errors import ConfigError
from adaverify.lab.bench.arms import Arm, is_foreign, parse_arms


def test_every_depth_and_adaptive_by_default():
    arms = parse_arms([], BASE)
    assert [arm.name for arm in arms] == ["k0", "k1", "k2", "k3", "av"]
    assert [arm.fixed_depth for arm in arms] == [0, 1, 2, 3, None]
    assert arms[0].speculative is None
    assert arms[3].speculative == FIXED
    assert arms[4].speculative == BASE


def test_a_range_of_depths():
    assert [arm.name for arm in parse_arms(["k2-4", "k7"], BASE)] == ["k2", "k3", "k4", "k7"]


def test_changes_to_the_base_and_whole_configurations():
    changed, whole = parse_arms(
        [
            'coupled={"rejection_sample_method": "coupled"}',
            'other={"method": "eagle3", "model": "e", "num_speculative_tokens": 2}',
        ],
        BASE,
    )
    assert changed.speculative == BASE.model_copy(update={"rejection_sample_method": "coupled"})
    # adaptive verification is not inherited by a configuration of its own
    assert (whole.speculative.model, whole.is_adaptive, whole.fixed_depth) == ("e", False, 2)


def test_foreign_servers():
    texts = ["up=http://host:8000/v1/", "vllm=vllm serve m --port {port}"]
    up, started = parse_arms(texts, None)
    assert up == Arm("up", url="http://host:8000")
    assert started == Arm("vllm", command="vllm serve m --port {port}")
    assert [is_foreign(text) for text in [*texts, "k0", "av", 'a={"method": "mtp"}']] == [True, True] + [False] * 3
    assert not up.is_ours
    assert up.fixed_depth is None
    assert not up.is_adaptive


def test_an_arm_is_off_of_another_if_nothing_else_differs():
    on = Arm("av", BASE)
    assert Arm("k3", FIXED).is_off_of(on)
    assert not Arm("k2", FIXED.model_copy(update={"num_speculative_tokens": 2})).is_off_of(on)
    assert not on.is_off_of(on)
    assert not Arm("k0").is_off_of(on)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["k"], "cannot read the arm 'k'"),
        (["x=vllm serve"], "{port}"),
        (["a b=http://x"], "may hold letters"),
        (["k1", "k0-2"], "two arms are called k1"),
        (["x={1}"], "not valid JSON"),
        (['x={"typo": 1}'], "typo"),
        (["k17"], "num_speculative_tokens"),
    ],
)
def test_slips_are_named(texts, told):
    with pytest.raises(ConfigError) as error:
        parse_arms(texts, BASE)
    assert told in str(error.value)


@pytest.mark.parametrize("texts", [[], ["k1"], ["av"], ['x={"num_speculative_tokens": 2}']])
def test_arms_that_need_a_drafter_say_so(texts):
    with pytest.raises(ConfigError, match="--speculative-config"):
        parse_arms(texts, None)
    assert parse_arms(["k0"], None) == (Arm("k0"),)
