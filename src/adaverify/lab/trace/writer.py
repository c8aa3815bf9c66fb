"""Writes a trace as it comes: one row group a file, so that a crash loses the open one alone."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adaverify.errors import TraceError
from adaverify.lab.trace.info import RunInfo
from adaverify.lab.trace.schema import SCHEMAS

ROWS_PER_FILE = {"drafts": 65_536, "steps": 4_096}
SECONDS_PER_FILE = 60.0
_FILES_IN_FLIGHT = 8


class TraceWriter:
    """Collects batches of rows and writes each full row group to a file of its own, on a thread of its own.

    Memory is bounded by the open row groups and a few finished ones; when the disk is slower than the traffic,
    :meth:`add` waits. A file appears under its name only when it is whole.

    Parameters
    ----------
    folder : Path
        Made if need be; may hold other runs.
    info : RunInfo
    rows_per_file : dict of str to int, optional
        Rows of a row group of ``drafts`` and ``steps``.
    seconds_per_file : float
        A row group is closed after this long even if it is not full.

    Raises
    ------
    TraceError
        The folder cannot be written to; later from :meth:`add` and :meth:`close` if writing failed.
    """

    def __init__(
        self,
        folder: Path,
        info: RunInfo,
        rows_per_file: dict[str, int] | None = None,
        seconds_per_file: float = SECONDS_PER_FILE,
    ) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(f"{folder}: cannot record there ({error}); give another folder") from error
        self.folder = folder
        self.info = info
        self.rows_per_file = rows_per_file or ROWS_PER_FILE
        self.seconds_per_file = seconds_per_file
        self._open: dict[str, list[pa.RecordBatch]] = {kind: [] for kind in SCHEMAS}
        self._numbers = dict.fromkeys(SCHEMAS, 0)
        self._opened = time.monotonic()
        self._failure: OSError | pa.ArrowException | None = None
        self._queue: queue.Queue[tuple[Path, pa.Schema, list[pa.RecordBatch]] | None] = queue.Queue(_FILES_IN_FLIGHT)
        self._thread = threading.Thread(target=self._run, name="adaverify-trace", daemon=True)
        self._thread.start()

    def add(self, kind: str, columns: dict[str, Any]) -> None:
        """Append rows to ``drafts`` or ``steps``; values are arrays or lists of equal length.

        A step goes before its drafts, with which alone row groups are closed: so files of one number cover the same
        steps.
        """
        self._raise_failure()
        schema = SCHEMAS[kind]
        arrays = [pa.array(columns[field.name], type=field.type) for field in schema]
        self._open[kind].append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        if kind == "drafts" and (self._is_full() or time.monotonic() - self._opened > self.seconds_per_file):
            self.flush()

    def flush(self) -> None:
        """Close the open row groups: drafts and steps together, so that files of one number belong together."""
        for kind, batches in self._open.items():
            if batches:
                name = f"{kind}-{self.info.run}-{self._numbers[kind]:06d}.parquet"
                self._queue.put((self.folder / name, self.info.attach(kind), batches))
                self._numbers[kind] += 1
                self._open[kind] = []
        self._opened = time.monotonic()

    def close(self) -> None:
        """Write what is left and stop."""
        if self._thread.is_alive():
            self.flush()
            self._queue.put(None)
            self._thread.join()
        self._raise_failure()

    def _is_full(self) -> bool:
        rows = {kind: sum(len(batch) for batch in batches) for kind, batches in self._open.items()}
        return any(rows[kind] >= self.rows_per_file[kind] for kind in SCHEMAS)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise TraceError(f"{self.folder}: recording failed ({self._failure}); free some space or record elsewhere")

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            path, schema, batches = work
            if self._failure is not None:
                continue
            partial = path.with_suffix(".partial")
            try:
                table = pa.Table.from_batches(batches).combine_chunks().unify_dictionaries()
                pq.write_table(table.cast(schema), partial, row_group_size=len(table), compression="zstd")
                partial.replace(path)
            except (OSError, pa.ArrowException) as error:
                self._failure = error
