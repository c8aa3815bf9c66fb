"""Throughput and latencies of one measurement, under vLLM's names and by its definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adaverify.lab.bench.client import Answer
from adaverify.lab.bench.drive import Traffic

LATENCIES = ("ttft", "tpot", "itl", "e2el")
_ERRORS_KEPT = 3


def figures(traffic: Traffic, percentiles: Sequence[float]) -> dict[str, Any]:
    """What one measurement gives.

    Parameters
    ----------
    traffic : Traffic
    percentiles : sequence of float
        0 to 100.

    Returns
    -------
    dict
        ``duration`` (s), ``completed``, ``failed``, ``errors``, ``total_input_tokens``, ``total_output_tokens``,
        ``request_throughput``, ``output_throughput`` (over the whole duration, as vLLM has it),
        ``steady_output_throughput`` (while the load lasted: :attr:`Traffic.loaded_until`),
        ``tokens_per_second_per_user`` (median over requests of the speed of their text while the load lasted),
        ``mean_``, ``median_`` and ``p99_`` of ``ttft_ms``, ``tpot_ms``, ``itl_ms`` and ``e2el_ms``, and ``datasets``
        with the latencies of each. None where no request allows it.
    """
    good = [answer for answer in traffic.answers if not answer.error]
    duration = traffic.ended - traffic.began
    output = sum(answer.output_tokens for answer in good)
    lasted = traffic.loaded_until - traffic.began
    by_dataset = {name: [one for one in good if one.dataset == name] for name in sorted({one.dataset for one in good})}
    return {
        "duration": duration,
        "loaded_seconds": lasted,
        "completed": len(good),
        "failed": len(traffic.answers) - len(good),
        "errors": list(dict.fromkeys(answer.error for answer in traffic.answers if answer.error))[:_ERRORS_KEPT],
        "total_input_tokens": sum(answer.input_tokens for answer in good),
        "total_output_tokens": output,
        "request_throughput": len(good) / duration,
        "output_throughput": output / duration,
        "steady_output_throughput": sum(tokens_until(one, traffic.loaded_until) for one in good) / lasted
        if lasted > 0
        else None,
        "tokens_per_second_per_user": user_speed(good, traffic.loaded_until),
        **latencies(good, percentiles),
        "datasets": {
            name: {
                "completed": len(answers),
                "total_output_tokens": sum(one.output_tokens for one in answers),
                "tokens_per_second_per_user": user_speed(answers, traffic.loaded_until),
                **latencies(answers, percentiles),
            }
            for name, answers in by_dataset.items()
        },
    }


def tokens_until(answer: Answer, time: float) -> float:
    """Tokens that had come by ``time``: deliveries of one answer count as equally large."""
    came = sum(delivery <= time for delivery in answer.deliveries)
    return answer.output_tokens * came / len(answer.deliveries)


def user_speed(answers: Sequence[Answer], until: float) -> float | None:
    """Median over answers of tokens per second between their first and their last delivery before ``until``."""
    speeds = []
    for answer in answers:
        times = [time for time in answer.deliveries if time <= until]
        if len(times) > 1 and times[-1] > times[0]:
            tokens = answer.output_tokens * (len(times) - 1) / len(answer.deliveries)
            speeds.append(tokens / (times[-1] - times[0]))
    return float(np.median(speeds)) if speeds else None


def latencies(answers: Sequence[Answer], percentiles: Sequence[float]) -> dict[str, float | None]:
    """Mean, median and percentiles of each latency, in milliseconds."""
    return {
        key: value
        for name in LATENCIES
        for key, value in _distribution(name, [ms for one in answers for ms in _samples(one)[name]], percentiles)
    }


def _samples(answer: Answer) -> dict[str, list[float]]:
    """Milliseconds of one answer.

    ``ttft``: from sending to the first text. ``tpot``: from the first to the last text, per token after the first.
    ``itl``: between two deliveries. ``e2el``: from sending to the last text.
    """
    times = np.array(answer.deliveries)
    tokens = answer.output_tokens
    return {
        "ttft": [1e3 * float(times[0] - answer.sent)],
        "tpot": [1e3 * float(times[-1] - times[0]) / (tokens - 1)] if tokens > 1 else [],
        "itl": (1e3 * np.diff(times)).tolist(),
        "e2el": [1e3 * float(times[-1] - answer.sent)],
    }


def _distribution(name: str, samples: list[float], percentiles: Sequence[float]) -> list[tuple[str, float | None]]:
    keys = [f"mean_{name}_ms", f"median_{name}_ms", *(f"p{percentile:g}_{name}_ms" for percentile in percentiles)]
    if not samples:
        return [(key, None) for key in keys]
    values = [np.mean(samples), np.median(samples), *np.percentile(samples, percentiles)]
    return [(key, float(value)) for key, value in zip(keys, values, strict=True)]
