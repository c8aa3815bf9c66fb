"""Traces: what was recorded of every draft and step, as Parquet."""

from adaverify.lab.trace.info import RunInfo
from adaverify.lab.trace.reader import read_trace
from adaverify.lab.trace.trace import Drafts, Steps, Trace
from adaverify.lab.trace.writer import TraceWriter

__all__ = ["Drafts", "RunInfo", "Steps", "Trace", "TraceWriter", "read_trace"]
