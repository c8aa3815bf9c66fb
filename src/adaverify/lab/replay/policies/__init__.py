"""Policies by name: what is drafted and verified in each step of a replay."""

from __future__ import annotations

from collections.abc import Callable

import torch

from adaverify.errors import ConfigError, TraceError
from adaverify.lab.replay.policies.base import Coefficients, Decision, Policy, Setting, Stretch
from adaverify.lab.replay.policies.clairvoyant import Clairvoyant
from adaverify.lab.replay.policies.fixed import Fixed
from adaverify.lab.replay.policies.ranked import Confidences, Learned, Ranked, Recorded
from adaverify.lab.replay.policies.stopping import HeadStop, Threshold, TrimmedThreshold
from adaverify.lab.replay.rounds import Rounds
from adaverify.policy import AcceptanceEstimator, OnlineAcceptanceEstimator, ProbeSchedule, RobustEstimator

__all__ = [
    "ESTIMATORS",
    "Coefficients",
    "Confidences",
    "Decision",
    "Learned",
    "Policy",
    "Ranked",
    "Recorded",
    "Setting",
    "Stretch",
    "default_policies",
    "left_out",
    "make_policy",
]

ESTIMATORS: dict[str, Callable[[int, int], AcceptanceEstimator]] = {
    "paper": lambda K, num_seats: OnlineAcceptanceEstimator(K),
    "robust": RobustEstimator,
}
"""Online estimators by mode, each made from K and the number of seats."""

_RECORDED_BY = {
    "head_logit": "the drafter has no confidence head, or it was not recorded",
    "overlap": "record every run with --overlap, and no penalties, bias or forbidden tokens; a fit is no substitute",
    "q_sampled": "record the runs again",
}


def make_policy(name: str, setting: Setting) -> Policy:
    """The policy of that name, new.

    Parameters
    ----------
    name : str
        ``fixed:K``, ``threshold:T``, ``threshold-trim:T``, ``survival``, ``head``, ``head-stop:T``,
        ``estimator:MODE``, ``av`` (as served, drafting only as deep as pays), ``oracle`` or ``clairvoyant``.
    setting : Setting

    Raises
    ------
    ConfigError
        There is no such policy, or its argument is out of range.
    TraceError
        The trace lacks what the policy reads.
    """
    family, colon, argument = name.partition(":")
    plain = _PLAIN.get(family)
    if plain is not None and not colon:
        return plain(setting)
    with_argument = _WITH_ARGUMENT.get(family)
    if with_argument is not None and argument:
        return with_argument(argument, setting)
    raise ConfigError(f"there is no policy {name!r}; choose from {', '.join(_names(setting.rounds))}")


def default_policies(rounds: Rounds) -> list[str]:
    """Every fixed K, the raw survival, the estimator in each mode, and what the trace allows of head and oracle."""
    return [
        *(f"fixed:{depth}" for depth in range(rounds.num_speculative_tokens + 1)),
        "survival",
        *(["head"] if rounds.share_recorded("head_logit") == 1 else []),
        *(f"estimator:{mode}" for mode in ESTIMATORS),
        *(["oracle"] if rounds.share_recorded("overlap") == 1 else []),
        "clairvoyant",
    ]


def left_out(rounds: Rounds) -> str:
    """Why the oracle is not among the defaults of a trace in which some overlaps were recorded; empty if it is."""
    share = rounds.share_recorded("overlap")
    if share in (0, 1):
        return ""
    return f"oracle left out: the overlap is known for {share:.0%} of the drafts; {_RECORDED_BY['overlap']}"


def _names(rounds: Rounds) -> list[str]:
    modes = [f"estimator:{mode}" for mode in ESTIMATORS]
    arguments = {"fixed": f"K (0 to {rounds.num_speculative_tokens})", "estimator": ""}
    others = [f"{family}:{arguments.get(family, 'T')}" for family in _WITH_ARGUMENT if family != "estimator"]
    return [*others, *modes, *_PLAIN]


def _fixed(argument: str, setting: Setting) -> Policy:
    K = setting.num_speculative_tokens
    if not (argument.isdecimal() and int(argument) <= K):
        raise ConfigError(f"fixed:{argument} was asked for, but the trace drafts {K}; choose from fixed:0 to fixed:{K}")
    return Fixed(int(argument))


def _estimator(argument: str, setting: Setting) -> Policy:
    if argument not in ESTIMATORS:
        raise ConfigError(f"there is no estimator {argument!r}; choose from {', '.join(_names(setting.rounds))}")
    estimator = ESTIMATORS[argument](setting.num_speculative_tokens, setting.num_seats)
    probes = ProbeSchedule() if argument == "robust" else None
    return Ranked(f"estimator:{argument}", Learned(estimator), setting, probes=probes)


def _threshold(family: str, make: Callable[[float], Policy], feature: str) -> Callable[[str, Setting], Policy]:
    def build(argument: str, setting: Setting) -> Policy:
        _check_recorded(family, feature, setting.rounds)
        try:
            threshold = float(argument)
        except ValueError:
            threshold = -1.0
        if not 0 <= threshold <= 1:
            raise ConfigError(f"{family}:{argument} needs a probability from 0 to 1, as in {family}:0.4")
        return make(threshold)

    return build


def _recorded(name: str, feature: str, attainable: bool = True) -> Callable[[Setting], Policy]:
    transform = torch.sigmoid if feature == "head_logit" else None

    def build(setting: Setting) -> Policy:
        _check_recorded(name, feature, setting.rounds)
        return Ranked(name, Recorded(feature, transform), setting, attainable)

    return build


def _served(setting: Setting) -> Policy:
    # the engine brings transformers with it, which no other policy needs
    from adaverify.lab.replay.policies.served import Served

    return Served(setting)


def _check_recorded(name: str, feature: str, rounds: Rounds) -> None:
    share = rounds.share_recorded(feature)
    if share < 1:
        remedy = _RECORDED_BY.get(feature, "record the runs again")
        raise TraceError(f"{name} needs {feature} of every draft, but the trace has it for {share:.0%}: {remedy}")


_PLAIN: dict[str, Callable[[Setting], Policy]] = {
    "survival": _recorded("survival", "q_max"),
    "head": _recorded("head", "head_logit"),
    "oracle": _recorded("oracle", "overlap", attainable=False),
    "clairvoyant": Clairvoyant,
    "av": _served,
}
_WITH_ARGUMENT: dict[str, Callable[[str, Setting], Policy]] = {
    "fixed": _fixed,
    "threshold": _threshold("threshold", Threshold, "q_sampled"),
    "threshold-trim": _threshold("threshold-trim", TrimmedThreshold, "q_sampled"),
    "head-stop": _threshold("head-stop", HeadStop, "head_logit"),
    "estimator": _estimator,
}
