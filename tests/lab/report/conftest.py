from __future__ import annotations

import pytest
from tests.lab.report.traces import HOSTILE, changed
from tests.lab.synthetic import run_info, write_trace

from adaverify.lab.report import Report
from adaverify.lab.trace import Trace, read_trace


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """One run of one drafter: 300 steps of 8 requests, K = 4, datasets maths and chat."""
    return read_trace([write_trace(tmp_path_factory.mktemp("one"), run_info(), num_steps=300)])


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two runs of one drafter, 120 steps of 8 and 60 of 4 requests."""
    folder = tmp_path_factory.mktemp("two")
    write_trace(folder, run_info(run="first"), num_steps=120)
    write_trace(folder, run_info(run="second"), num_steps=60, num_requests=4, seed=1)
    return read_trace([folder])


@pytest.fixture(scope="session")
def two_drafters(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two drafters, of K = 4 and K = 2; the second, its target, its run and a dataset have hostile names."""
    folder = tmp_path_factory.mktemp("drafters")
    write_trace(folder, run_info(run="1"), num_steps=250)
    info = run_info(run="2", drafter=HOSTILE, target=f"t{HOSTILE}", method="mtp", num_speculative_tokens=2)
    write_trace(folder, info, num_steps=50, datasets=(HOSTILE, "_chat", "a_data_set_with_a_long_name"))
    return read_trace([folder])


@pytest.fixture(scope="session")
def report(two_drafters: Trace) -> Report:
    """The report of ``two_drafters``, with a refit every 20 steps."""
    return Report.of(changed(two_drafters, steps={"num_refits": two_drafters.steps.step // 20}))


@pytest.fixture(scope="session")
def text(report: Report) -> str:
    """Its page, whose title is hostile too."""
    return report.html(HOSTILE)
