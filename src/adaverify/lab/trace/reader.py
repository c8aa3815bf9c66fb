"""Reads the Parquet files of one or more recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adaverify.errors import TraceError
from adaverify.lab.trace.info import RunInfo
from adaverify.lab.trace.schema import SCHEMAS
from adaverify.lab.trace.trace import Drafts, Steps, Trace


def read_trace(paths: Sequence[str | Path]) -> Trace:
    """Read the runs in ``paths``: folders that ``adaverify record`` or ``serve --record`` wrote, or single files.

    A file that several paths lead to is read once, and the files of a run follow each other, however paths are given.

    Raises
    ------
    TraceError
        A path does not exist, a file is truncated, empty, not a trace, or of another schema version, two files are
        copies of each other, or there is no draft in all of them. The message names the file and the remedy.
    """
    runs: dict[str, RunInfo] = {}
    datasets: dict[str, int] = {}
    drafts_of: dict[tuple[int, str], Drafts] = {}
    steps_of: dict[tuple[int, str], Steps] = {}
    for file in _files(paths):
        table, info = _read_file(file)
        run = list(runs).index(info.run) if info.run in runs else len(runs)
        runs.setdefault(info.run, info)
        place = (run, file.name)
        if place in drafts_of or place in steps_of:
            raise TraceError(f"{file}: another file of this name and run was given, too; leave one of the copies out")
        if _kind(file) == "drafts":
            drafts_of[place] = _drafts(table, run, datasets)
        else:
            steps_of[place] = _steps(table, run)
    drafts = [drafts_of[place] for place in sorted(drafts_of)]
    steps = [steps_of[place] for place in sorted(steps_of)]
    if not drafts or not any(len(part) for part in drafts):
        raise TraceError(f"{', '.join(map(str, paths))}: no draft was recorded; record a run with a drafter first")
    K = max(info.num_speculative_tokens for info in runs.values())
    steps = [_widened(part, K) for part in steps] or [_no_steps(K)]
    return Trace(tuple(runs.values()), tuple(datasets), Drafts.concatenate(drafts), Steps.concatenate(steps))


def _kind(file: Path) -> str:
    return file.name.split("-", 1)[0]


def _files(paths: Sequence[str | Path]) -> list[Path]:
    """All trace files, each once, those of a folder in the order they were written."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(file for file in path.rglob("*.parquet") if _kind(file) in SCHEMAS)
            if not found:
                raise TraceError(f"{path}: holds no trace; give folders written by `adaverify record`")
            files += found
        elif path.is_file():
            files.append(path)
        else:
            raise TraceError(f"{path}: no such file or folder; give folders written by `adaverify record`")
    return list({file.resolve(): file for file in files}.values())


def _read_file(file: Path) -> tuple[pa.Table, RunInfo]:
    """The table of one file, checked against the schema."""
    if file.stat().st_size == 0:
        raise TraceError(f"{file}: empty; delete it, the rest of the trace can be read without it")
    try:
        with pq.ParquetFile(file) as parquet:
            info = RunInfo.read(parquet.schema_arrow, str(file))
            expected = SCHEMAS.get(_kind(file))
            if expected is None:
                raise TraceError(f"{file}: trace files are named drafts-*.parquet and steps-*.parquet; rename it back")
            missing = [name for name in expected.names if name not in parquet.schema_arrow.names]
            if missing:
                raise TraceError(f"{file}: lacks the columns {', '.join(missing)}; record it again")
            table = parquet.read(columns=expected.names)
            return table.cast(expected), info
    except (pa.ArrowException, OSError) as error:
        raise TraceError(
            f"{file}: truncated or not Parquet ({error}); delete it, the rest of the trace can be read without it"
        ) from error


def _drafts(table: pa.Table, run: int, datasets: dict[str, int]) -> Drafts:
    columns: dict[str, Any] = {name: _numpy(table[name]) for name in table.column_names if name != "dataset"}
    encoded = pa.chunked_array(table["dataset"]).combine_chunks()
    names = encoded.dictionary.to_pylist()
    codes = np.array([datasets.setdefault(name, len(datasets)) for name in names], dtype=np.int32)
    columns["dataset"] = codes[_numpy(encoded.indices)] if len(names) else np.zeros(0, np.int32)
    return Drafts(run=np.full(len(table), run, dtype=np.int16), **columns)


def _steps(table: pa.Table, run: int) -> Steps:
    columns: dict[str, Any] = {name: _numpy(table[name]) for name in table.column_names if name != "intercepts"}
    lists = table["intercepts"].combine_chunks()
    lengths = _numpy(pc.list_value_length(lists))
    width = int(lengths.max(initial=0))
    columns["intercepts"] = np.full((len(table), width), np.nan, dtype=np.float32)
    if width:
        columns["intercepts"][np.arange(width) < lengths[:, None]] = _numpy(lists.flatten())
    return Steps(run=np.full(len(table), run, dtype=np.int16), **columns)


def _numpy(array: Any) -> Any:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.to_numpy(zero_copy_only=False)


def _widened(part: Steps, width: int) -> Steps:
    missing = width - part.intercepts.shape[1]
    columns = {field.name: getattr(part, field.name) for field in fields(part)}
    columns["intercepts"] = np.pad(part.intercepts, ((0, 0), (0, missing)), constant_values=np.nan)
    return Steps(**columns)


def _no_steps(width: int) -> Steps:
    table = pa.table({field.name: pa.array([], field.type) for field in SCHEMAS["steps"]}, schema=SCHEMAS["steps"])
    return _widened(_steps(table, 0), width)
