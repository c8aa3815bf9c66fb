from __future__ import annotations

import typer
from tests.lab.report.traces import Page
from tests.lab.synthetic import run_info, write_trace
from typer.testing import CliRunner

from adaverify.cli.report import report
from adaverify.errors import ConfigError, TraceError

app = typer.Typer()
app.command()(report)


def test_writes_the_page_and_the_figures(tmp_path):
    traces = [write_trace(tmp_path / name, run_info(run=name), num_steps=40) for name in "ab"]
    output, png = tmp_path / "page.html", tmp_path / "png"
    result = CliRunner().invoke(
        app, [*map(str, traces), "-o", str(output), "--png", str(png), "--title", "Mine & yours"]
    )
    assert result.exit_code == 0, result.output
    page = Page(output.read_text(encoding="utf-8"))
    assert "Mine & yours" in page.texts
    assert {"a", "b"} <= set(page.texts)
    assert len(list(png.iterdir())) == page.count("svg") == 6
    assert f"6 figures written to {output}" in result.output


def test_refuses_an_output_that_cannot_be_written(tmp_path):
    trace = write_trace(tmp_path / "trace", num_steps=10)
    missing = CliRunner().invoke(app, [str(trace), "-o", str(tmp_path / "none" / "page.html")])
    assert isinstance(missing.exception, ConfigError)
    assert "does not exist" in str(missing.exception)
    folder = CliRunner().invoke(app, [str(trace), "-o", str(tmp_path)])
    assert isinstance(folder.exception, ConfigError)
    assert "it is a folder" in str(folder.exception)
    file = tmp_path / "file"
    file.touch()
    png = CliRunner().invoke(app, [str(trace), "-o", str(tmp_path / "page.html"), "--png", str(file)])
    assert isinstance(png.exception, ConfigError)
    assert "cannot write the report" in str(png.exception)


def test_a_folder_without_a_trace_is_named(tmp_path):
    result = CliRunner().invoke(app, [str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert isinstance(result.exception, TraceError)
    assert str(tmp_path) in str(result.exception)
    assert not (tmp_path / "page.html").exists()
