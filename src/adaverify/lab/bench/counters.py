"""What the server itself counted during a measurement, from its Prometheus metrics."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from adaverify.lab.bench.drive import Endpoint

# Names, and the label that tells their samples apart. Those of vLLM are found on its servers, too.
_COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": "position",
    "adaverify:draft_tokens_drafted_total": "position",
    "adaverify:draft_tokens_admitted_total": "position",
    "adaverify:step_seconds_total": "part",
    "vllm:prefix_cache_hits_total": "",
    "vllm:num_preemptions_total": "",
}
Counters = dict[str, dict[str, float]]


def scrape(endpoint: Endpoint) -> Counters | None:
    """The counters of this moment; None where the server has no metrics."""
    try:
        response = httpx.get(f"{endpoint.url}/metrics", headers=endpoint.headers, timeout=30, trust_env=False)
        return parse(response.text) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


def parse(text: str) -> Counters:
    """Counters by name and label, summed over engines.

    Raises
    ------
    ValueError
        It is not Prometheus' text format.
    """
    found: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in _COUNTERS:
                found[sample.name][sample.labels.get(_COUNTERS[sample.name], "")] += sample.value
    return {name: dict(values) for name, values in found.items()}


def spent(before: Counters | None, after: Counters | None) -> dict[str, Any]:
    """What was counted between two scrapes.

    Returns
    -------
    dict
        ``rounds`` (request-rounds that had drafts), ``drafted``, ``admitted`` and ``accepted`` (drafts by position),
        ``step_seconds`` (by part of the step), ``cached_input_tokens``, ``preemptions``; None for what a server does
        not tell.
    """

    def differences(name: str) -> dict[str, float] | None:
        if before is None or after is None or name not in after:
            return None
        return {label: value - before.get(name, {}).get(label, 0.0) for label, value in after[name].items()}

    def by_position(name: str) -> list[int] | None:
        values = differences(name)
        return None if values is None else [round(values[key]) for key in sorted(values, key=int)]

    def total(name: str) -> int | None:
        values = differences(name)
        return None if values is None else round(sum(values.values()))

    return {
        "rounds": total("vllm:spec_decode_num_drafts_total"),
        "drafted": by_position("adaverify:draft_tokens_drafted_total"),
        "admitted": by_position("adaverify:draft_tokens_admitted_total"),
        "accepted": by_position("vllm:spec_decode_num_accepted_tokens_per_pos_total"),
        "step_seconds": differences("adaverify:step_seconds_total"),
        "cached_input_tokens": total("vllm:prefix_cache_hits_total"),
        "preemptions": total("vllm:num_preemptions_total"),
    }
