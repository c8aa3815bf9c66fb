"""What memory a server holds while requests come and go: its KV pool is bounded, and nothing else may grow.

``python -m benchmarks.memory --prompts FILE.jsonl ...`` starts the default server with 64 seats, lets a thousand
requests through it in waves, and reads the resident memory of its process between them. Pages of the pool count from
when they are first written, so that memory grows until the pool has been used once; the pool here is small enough for
the first wave to do so. Needs ``/proc`` (Linux).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from adaverify.lab.bench.arms import Arm
from adaverify.lab.bench.drive import drive
from adaverify.lab.bench.load import Load
from adaverify.lab.bench.server import Server
from adaverify.lab.bench.settings import Asking
from adaverify.lab.bench.workload import read_workloads
from benchmarks.common import keep

MIB = 1 << 20


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", nargs="+", required=True, help="JSONL files with turns")
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="of one wave")
    parser.add_argument("--seats", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--kv-cache-memory-bytes", type=int, default=512 * MIB)
    parser.add_argument("--name", default="memory")
    args = parser.parse_args()
    waves = measure(args)
    growth = waves[-1]["resident_mib"] - waves[1]["resident_mib"]
    Console(width=120).print(
        as_table(waves, args), f"growth from the end of the first wave to the last: {growth:.1f} MiB"
    )
    figures = {"seats": args.seats, "kv_cache_memory_bytes": args.kv_cache_memory_bytes, "max_tokens": args.max_tokens}
    keep(args.name, {**figures, "growth_mib": growth, "waves": waves})


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Resident memory before the first wave and after each."""
    workload = read_workloads(args.prompts, apart=False)[0]
    seats, pool = str(args.seats), str(args.kv_cache_memory_bytes)
    command = [sys.executable, "-m", "adaverify", "serve", "--host", "127.0.0.1", "--port", "{port}"]
    command += ["--max-num-seqs", seats, "--kv-cache-memory-bytes", pool]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Arm("default"), command, Path(folder) / "server.log", patience=600, headers={})
        try:
            endpoint = server.start()
            waves = [{"requests": 0, "failed": 0, "resident_mib": resident_mib(server)}]
            for wave in range(args.waves):
                questions = workload.slice(0, wave * args.requests, args.requests)
                asking = Asking(output_len=args.max_tokens)
                traffic = drive(endpoint, questions, Load(args.seats), asking, seed=wave)
                failed = sum(bool(answer.error) for answer in traffic.answers)
                waves.append({"requests": len(questions), "failed": failed, "resident_mib": resident_mib(server)})
                print(f"wave {wave + 1} of {args.waves}: {waves[-1]}", flush=True)
            return waves
        finally:
            server.stop()


def resident_mib(server: Server) -> float:
    """Resident memory of the server's process."""
    pages = int(Path(f"/proc/{server.group}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def as_table(waves: list[dict[str, Any]], args: argparse.Namespace) -> Table:
    """One row a wave."""
    title = (
        f"Resident memory of a server with {args.seats} seats and a KV pool of {args.kv_cache_memory_bytes / MIB:g} MiB"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("after wave", "requests", "failed", "resident MiB"):
        table.add_column(heading, justify="right")
    for number, wave in enumerate(waves):
        table.add_row(str(number), str(wave["requests"]), str(wave["failed"]), f"{wave['resident_mib']:.0f}")
    return table


if __name__ == "__main__":
    main()
