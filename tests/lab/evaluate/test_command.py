from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
import typer
from rich.console import Console
from tests.lab.evaluate.traces import memory_trace
from tests.lab.synthetic import run_info, write_trace
from typer.testing import CliRunner

from adaverify.cli import evaluate as command
from adaverify.errors import TraceError
from adaverify.lab.evaluate import evaluate
from adaverify.lab.evaluate.show import tables

app = typer.Typer()
app.command()(command.evaluate)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("traces")
    write_trace(root, run_info(run="a", drafter="one"), num_steps=80)
    return write_trace(root, run_info(run="b", drafter="two", num_speculative_tokens=3), num_steps=60, seed=1)


def test_json_is_one_document(folder):
    result = CliRunner().invoke(app, [str(folder), "--json", "--bins", "10"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["settings"]["ece_bins"] == 10
    assert {row["drafter"] for row in document["measurements"]} == {"all drafters", "one", "two"}


def test_filters_keep_one_drafter_and_one_dataset(folder):
    result = CliRunner().invoke(app, [str(folder), "--json", "--drafter", "two", "--dataset", "chat"])
    document = json.loads(result.stdout)
    assert {row["drafter"] for row in document["measurements"]} == {"two"}
    assert {group["dataset"] for group in document["coefficients"]["by_dataset"]} == {"chat"}
    assert document["counts"]["drafts"] == 60 * 8 * 3 // 2


def test_tables_name_every_score_and_every_claim(folder):
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(folder)])
    assert result.exit_code == 0, result.output
    for words in ("logit q_sampled", "online: river", "without position 1", "AUC by position", "The paper's claims"):
        assert words in result.stdout


@pytest.fixture(scope="module")
def wide():
    """The widest there is: greedy and sampled requests, seven positions, long names, large numbers."""
    drafter = "smollm2-135m-instruct-dspark"
    law = {"num_steps": 60, "intercepts": (0.3, 0.1, -0.1, -0.3, -0.5, -0.7, -0.9), "datasets": ("gsm8k_test",)}
    trace = memory_trace((run_info(run="a", drafter=drafter, num_speculative_tokens=7), law))
    trace.drafts.temperature[trace.drafts.request % 2 == 0] = 0
    return evaluate(trace, replicates=50)


def test_the_tables_of_scores_fit_100_columns_uncut(wide):
    console = Console(width=100, record=True, file=io.StringIO())
    for table in tables(wide):
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "sampled requests, without position 1" in text


def test_a_name_that_was_not_recorded_is_an_error(folder):
    result = CliRunner().invoke(app, [str(folder), "--drafter", "three"])
    assert isinstance(result.exception, TraceError)
    assert "there are one, two" in str(result.exception)


def test_help_does_not_load_the_lab():
    code = (
        "import sys, adaverify.cli.evaluate; sys.exit(any(m in sys.modules for m in ('torch', 'sklearn', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
