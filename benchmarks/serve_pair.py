"""A target and a drafter behind the server: prompts at fixed concurrency, and what verification did with the drafts.

``python -m benchmarks.serve_pair --target DIR --drafter DIR --prompts FILE.jsonl`` starts ``adaverify serve``, asks the
prompts of the file (one JSON object a line, first entry of ``turns``) through the ``openai`` client, and reports
accepted and admitted drafts per round and output tokens per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.common import keep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=40)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--num-speculative-tokens", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--name", default="serve_pair")
    options = parser.parse_args()
    prompts = [json.loads(line)["turns"][0] for line in options.prompts.read_text().splitlines()][: options.limit]
    speculative = {
        "method": "draft_model",
        "model": options.drafter,
        "num_speculative_tokens": options.num_speculative_tokens,
        "enable_adaptive_verification": True,
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "adaverify", "serve", options.target, "--port", str(port)]
    command += ["--max-num-seqs", str(options.concurrency), "--speculative-config", json.dumps(speculative)]
    server = subprocess.Popen(command)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, server)
        seconds, usages = asyncio.run(_ask(url, prompts, options))
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
    finally:
        server.terminate()
        server.wait(60)
    tokens = sum(usages)
    figures: dict[str, Any] = {
        "prompts": len(prompts),
        "concurrency": options.concurrency,
        "output_tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        **_per_round(metrics),
    }
    print(json.dumps(figures, indent=2))
    keep(options.name, figures)


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with code {server.returncode} before it answered")
        try:
            urllib.request.urlopen(f"{url}/health")
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("the server did not answer /health within ten minutes")


async def _ask(url: str, prompts: list[str], options: argparse.Namespace) -> tuple[float, list[int]]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=3600, max_retries=0)
    model = (await client.models.list()).data[0].id
    seats = asyncio.Semaphore(options.concurrency)

    async def ask(prompt: str) -> int:
        async with seats:
            answer = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=options.max_tokens,
                temperature=options.temperature,
                top_p=options.top_p,
            )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    start = time.perf_counter()
    usages = await asyncio.gather(*(ask(prompt) for prompt in prompts))
    return time.perf_counter() - start, list(usages)


def _per_round(metrics: str) -> dict[str, Any]:
    """Drafted, admitted and accepted drafts by position, and per round that drafted."""

    def by_position(name: str) -> list[float]:
        lines = [line for line in metrics.splitlines() if line.startswith(f"{name}{{")]
        return [float(line.rsplit(" ", 1)[1]) for line in lines]

    drafted = by_position("adaverify:draft_tokens_drafted_total")
    admitted = by_position("adaverify:draft_tokens_admitted_total")
    accepted = by_position("adaverify:draft_tokens_accepted_total")
    rounds = drafted[0]
    return {
        "drafted": drafted,
        "admitted": admitted,
        "accepted": accepted,
        "admitted_per_round": sum(admitted) / rounds,
        "accepted_per_round": sum(accepted) / rounds,
        "acceptance": sum(accepted) / max(1.0, sum(admitted)),
    }


if __name__ == "__main__":
    main()
