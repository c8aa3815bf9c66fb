from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.lab.synthetic import columns, run_info, write_trace

from adaverify.errors import TraceError
from adaverify.lab.trace import TraceWriter, read_trace
from adaverify.lab.trace.schema import METADATA_KEY


def files(folder, kind="drafts"):
    return sorted(folder.glob(f"{kind}-*.parquet"))


def test_what_was_written_is_read(tmp_path):
    trace = read_trace([write_trace(tmp_path, num_steps=20)])
    drafts, steps = columns(num_steps=20)
    for name, values in drafts.items():
        read = np.array(trace.datasets)[trace.drafts.dataset] if name == "dataset" else getattr(trace.drafts, name)
        np.testing.assert_array_equal(read, values, err_msg=name)
    for name, values in steps.items():
        np.testing.assert_array_equal(getattr(trace.steps, name), np.asarray(values, getattr(trace.steps, name).dtype))
    assert trace.runs == (run_info(),)


def test_a_file_holds_one_row_group_and_all_files_the_trace(tmp_path):
    trace = read_trace([write_trace(tmp_path, num_steps=100, rows_per_file=1000)])
    assert len(files(tmp_path)) == 3
    assert all(pq.ParquetFile(file).num_row_groups == 1 for file in files(tmp_path))
    assert len(trace.drafts) == 100 * 8 * 4
    assert (np.diff(trace.drafts.step) >= 0).all()


def test_a_crash_loses_the_open_row_group_alone(tmp_path):
    writer = TraceWriter(tmp_path, run_info(), {"drafts": 320, "steps": 1000})
    drafts, steps = columns(num_steps=25)
    for step in range(25):
        rows = slice(step * 32, (step + 1) * 32)
        writer.add("steps", {name: values[step : step + 1] for name, values in steps.items()})
        writer.add("drafts", {name: values[rows] for name, values in drafts.items()})
    writer._queue.put(None)  # the process dies here; what was handed over is on the disk
    writer._thread.join()
    trace = read_trace([tmp_path])
    assert len(trace.drafts) == 2 * 320
    assert len(trace.steps) == 20
    assert not list(tmp_path.glob("*.partial"))


def test_a_slow_server_closes_row_groups_by_the_clock(tmp_path):
    writer = TraceWriter(tmp_path, run_info(), seconds_per_file=0.0)
    drafts, _ = columns(num_steps=1)
    writer.add("drafts", drafts)
    writer.add("drafts", drafts)
    writer.close()
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("late", [False, True])
def test_files_of_one_number_cover_the_same_steps(tmp_path, late):
    writer = TraceWriter(tmp_path, run_info(), {"drafts": 1000, "steps": 1000 if late else 2})
    drafts, steps = columns(num_steps=4)
    for step in range(4):
        if late and step == 1:
            writer.seconds_per_file = 0.0
        writer.add("steps", {name: values[step : step + 1] for name, values in steps.items()})
        writer.add("drafts", {name: values[step * 32 : (step + 1) * 32] for name, values in drafts.items()})
    writer.close()
    for kind in ("drafts", "steps"):
        covered = [pq.read_table(file)["step"].unique().to_pylist() for file in files(tmp_path, kind)]
        assert covered == ([[0, 1], [2], [3]] if late else [[0, 1], [2, 3]])


def test_a_failed_write_is_reported(tmp_path):
    folder = tmp_path / "trace"
    writer = TraceWriter(folder, run_info(), {"drafts": 1, "steps": 1})
    folder.rmdir()
    writer.add("drafts", columns(num_steps=1)[0])
    with pytest.raises(TraceError, match="recording failed"):
        writer.close()


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot record there"):
        TraceWriter(tmp_path / "file" / "trace", run_info())


def test_runs_of_different_depth_in_one_trace(tmp_path):
    write_trace(tmp_path, run_info(run="a"), num_steps=10)
    write_trace(
        tmp_path, run_info(run="b", num_speculative_tokens=2, drafter="other"), num_steps=10, datasets=("chat",)
    )
    trace = read_trace([tmp_path])
    assert [run.run for run in trace.runs] == ["a", "b"]
    assert set(np.array(trace.datasets)[trace.drafts.dataset[trace.drafts.run == 1]]) == {"chat"}
    assert trace.steps.intercepts.shape == (20, 4)
    assert np.isnan(trace.steps.intercepts[trace.steps.run == 1, 2:]).all()
    second = trace.of_runs([1])
    assert (second.runs[0].drafter, len(second.drafts), set(second.drafts.run)) == ("other", 10 * 8 * 2, {0})
    assert len(second.steps) == 10


def test_paths_that_overlap_are_read_once(tmp_path):
    folder = write_trace(tmp_path / "inner", num_steps=40, rows_per_file=320)
    once = read_trace([folder])
    for paths in ([folder, folder], [tmp_path, folder], [*files(folder), *files(folder, "steps"), folder]):
        again = read_trace(paths)
        assert (len(again.drafts), len(again.steps)) == (40 * 8 * 4, 40)
        np.testing.assert_array_equal(again.drafts.step, once.drafts.step)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert len(read_trace([folder, link]).drafts) == 40 * 8 * 4


def test_a_copy_of_a_file_is_refused(tmp_path):
    folder = write_trace(tmp_path / "one", num_steps=10)
    shutil.copytree(folder, tmp_path / "two")
    with pytest.raises(TraceError, match=r"two.*another file of this name and run.*leave one of the copies out"):
        read_trace([tmp_path / "one", tmp_path / "two"])


def test_files_of_one_run_follow_each_other_in_whatever_order_they_are_given(tmp_path):
    for run in ("a", "b"):
        write_trace(tmp_path, run_info(run=run), num_steps=40, rows_per_file=320)
    first, second, *others = files(tmp_path)
    trace = read_trace([second, others[-1], first, *others[:-1], *files(tmp_path, "steps")])
    ordered = read_trace([tmp_path])
    assert trace.runs == ordered.runs
    np.testing.assert_array_equal(trace.drafts.run, ordered.drafts.run)
    np.testing.assert_array_equal(trace.drafts.step, ordered.drafts.step)
    np.testing.assert_array_equal(trace.steps.run, ordered.steps.run)


def test_truncated_and_empty_files_are_named(tmp_path):
    write_trace(tmp_path, num_steps=10)
    file = files(tmp_path)[0]
    whole = file.read_bytes()
    for content, message in (
        (whole[: len(whole) // 2], "truncated"),
        (b"", "empty"),
        (b"not parquet at all", "truncated"),
    ):
        file.write_bytes(content)
        with pytest.raises(TraceError, match=message) as error:
            read_trace([tmp_path])
        assert file.name in str(error.value)


def test_foreign_parquet_is_refused(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "drafts-x-000000.parquet")
    with pytest.raises(TraceError, match="not a trace of adaverify"):
        read_trace([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="holds no trace"):
        read_trace([tmp_path / "empty"])
    with pytest.raises(TraceError, match="no such file"):
        read_trace([tmp_path / "nowhere"])


@pytest.mark.parametrize(("version", "age"), [(0, "older"), (99, "newer")])
def test_another_schema_version_is_refused(tmp_path, version, age):
    write_trace(tmp_path, num_steps=5)
    file = files(tmp_path)[0]
    table = pq.read_table(file)
    info = json.loads(table.schema.metadata[METADATA_KEY]) | {"schema_version": version}
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(info)}), file)
    with pytest.raises(TraceError, match=f"version {version}, {age}") as error:
        read_trace([tmp_path])
    assert "damaged" not in str(error.value)


def test_damaged_descriptions_and_missing_columns_are_refused(tmp_path):
    write_trace(tmp_path, num_steps=5)
    file = files(tmp_path)[0]
    table = pq.read_table(file)
    pq.write_table(table.drop_columns(["label", "margin"]), file)
    with pytest.raises(TraceError, match="lacks the columns margin, label"):
        read_trace([tmp_path])
    for text in (b"[]", b"{", json.dumps({"schema_version": 1}).encode()):
        pq.write_table(table.replace_schema_metadata({METADATA_KEY: text}), file)
        with pytest.raises(TraceError, match=r"damaged|not a trace|version"):
            read_trace([tmp_path])


def test_a_trace_without_drafts_is_not_one(tmp_path):
    write_trace(tmp_path, num_steps=5)
    for file in files(tmp_path):
        file.unlink()
    with pytest.raises(TraceError, match="no draft was recorded"):
        read_trace([tmp_path])
