"""Everything that decides what is measured."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from typing import Any

from adaverify.errors import ConfigError
from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.provenance import without_folders
from adaverify.lab.bench.workload import Question, Workload

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class Asking:
    """How one request is made.

    Attributes
    ----------
    endpoint : str
        ``/v1/chat/completions`` or ``/v1/completions``.
    output_len : int
        Most tokens of an answer; with ``ignore_eos`` exactly so many.
    range_ratio : float
        Share of ``output_len``, 0 to 1, by which the length of single answers may differ from it. Where all are equally
        long, users who started together ask together for ever, and their prompts are read in one step: without
        speculation always, with it only until drafts are accepted.
    ignore_eos : bool
    temperature, top_p : float
    extra_body : dict
        Further fields of the request.
    timeout : float
        Seconds without a byte after which a request has failed.
    """

    endpoint: str = CHAT
    output_len: int = 128
    range_ratio: float = 0.0
    ignore_eos: bool = False
    temperature: float = 1.0
    top_p: float = 0.95
    extra_body: dict[str, Any] = field(default_factory=dict)
    timeout: float = 600.0

    def length_of(self, question: Question) -> int:
        """Most tokens of the answer to ``question``: the same for every arm."""
        most = round(self.range_ratio * self.output_len)
        return max(2, self.output_len + random.Random(question.seed).randint(-most, most))


@dataclass(frozen=True)
class Settings:
    """One comparison.

    Attributes
    ----------
    arms : tuple of Arm
    workloads : tuple of Workload
    loads : tuple of Load
    asking : Asking
    passes : int
        Times that everything is measured; may grow when a comparison is taken up again.
    baseline : str
        Arm that ratios are taken to; not part of what is measured.
    num_prompts, prompts_per_seat : int
        Requests of one measurement, see :meth:`Load.num_requests`.
    num_warmups : int
        Requests after each start of a server, which do not count.
    percentiles : tuple of float
        Of latencies, 0 to 100.
    seed : int
        Of the order of the prompts, their sampling, and the arrivals.
    target : str, optional
        What servers of ours serve; None where there are none.
    serve_flags : tuple of str
        Further arguments of ``adaverify serve``, the same for all arms.
    alone : bool
        One server at a time, instead of all at once with all but one stopped.
    """

    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]
    loads: tuple[Load, ...]
    asking: Asking = field(default_factory=Asking)
    passes: int = 3
    baseline: str = ""
    num_prompts: int = 16
    prompts_per_seat: int = 3
    num_warmups: int = 32
    percentiles: tuple[float, ...] = (50, 90, 99)
    seed: int = 0
    target: str | None = None
    serve_flags: tuple[str, ...] = ()
    alone: bool = False

    def __post_init__(self) -> None:
        labels = [load.label for load in self.loads]
        if len(set(labels)) < len(labels):
            raise ConfigError(f"a load comes twice among {', '.join(labels)}; name each once")
        if self.asking.endpoint not in (CHAT, COMPLETIONS):
            raise ConfigError(f"--endpoint {self.asking.endpoint!r} is not known; use {CHAT} or {COMPLETIONS}")
        if self.baseline not in {arm.name for arm in self.arms}:
            raise ConfigError(
                f"the baseline {self.baseline!r} is no arm; use one of {', '.join(arm.name for arm in self.arms)}"
            )

    def num_requests(self, load: Load) -> int:
        """Requests of one measurement at ``load``."""
        return load.num_requests(self.num_prompts, self.prompts_per_seat)

    def first_question(self, pass_number: int, load: Load) -> int:
        """Number of the first question of a measurement: no two measurements of an arm share one."""
        a_pass = sum(self.num_requests(each) for each in self.loads)
        earlier = self.loads[: self.loads.index(load)]
        return self.num_warmups + pass_number * a_pass + sum(self.num_requests(each) for each in earlier)

    def to_dict(self) -> dict[str, Any]:
        """What is measured, as plain values without the folders of this machine, and a fingerprint of the whole.

        ``passes`` and ``baseline`` are left out: they may change when a comparison is taken up again.
        """
        asking = {name: value for name, value in vars(self.asking).items() if name != "timeout"}
        whole = {
            "target": self.target,
            "serve_flags": list(self.serve_flags),
            "arms": [arm.to_dict() for arm in self.arms],
            "workloads": [workload.to_dict() for workload in self.workloads],
            "loads": [load.to_dict() for load in self.loads],
            **asking,
            "num_prompts": self.num_prompts,
            "prompts_per_seat": self.prompts_per_seat,
            "num_warmups": self.num_warmups,
            "metric_percentiles": list(self.percentiles),
            "seed": self.seed,
            "servers": "alone" if self.alone else "together",
        }
        text = json.dumps(whole, sort_keys=True)
        short: dict[str, Any] = _shortened(whole)
        return {**short, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return without_folders(value)
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list) else value
