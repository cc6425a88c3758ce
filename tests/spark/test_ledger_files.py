"""The files of a ledger: merged spans, covered files, and the rows that the audit reads."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from bruce_mp.spark import batch_job
from bruce_mp.spark.audit.inputs import read_ledger
from bruce_mp.spark.batch_job import BatchJob, try_merge_ledger
from bruce_mp.spark.cli import main
from bruce_mp.spark.ledger import TaskAttempt, TaskResult, write_ledger
from bruce_mp.spark.ledger_files import (
    MERGE_WIDTHS,
    LedgerFileError,
    MergeResult,
    merge_ledger,
    visible_files,
    visible_paths,
)
from bruce_mp.spark.options import SinkOptions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

QUERY: Final = str(UUID(int=17))
SPAN: Final = MERGE_WIDTHS[0]


def commit(ledger: Path, batch: int, name: str | None = None, rows: int = 10) -> None:
    attempt = TaskAttempt(QUERY, batch, 0, 0)
    result = TaskResult(attempt, "host", {("t", 60_000): rows}, "delivered", stamped=True, delivered=rows)
    write_ledger(str(ledger), [result], name=name or f"{QUERY}-{batch}")


def age(ledger: Path, seconds: float, pattern: str = "*.json") -> None:
    for path in ledger.glob(pattern):
        os.utime(path, (time.time() - seconds,) * 2)


def rows_of(ledger: Path, names: list[str]) -> list[dict[str, object]]:
    return [json.loads(line) for name in names for line in (ledger / name).read_text().splitlines()]


def test_only_a_span_with_a_later_batch_is_merged(tmp_path: Path) -> None:
    for batch in range(SPAN):
        commit(tmp_path, batch)
    assert merge_ledger(str(tmp_path)) == MergeResult(0, 0, 0)
    commit(tmp_path, SPAN)
    before = rows_of(tmp_path, visible_files(str(tmp_path)))
    assert merge_ledger(str(tmp_path)) == MergeResult(SPAN, 1, 0)
    visible = visible_files(str(tmp_path))
    assert visible == [f"{QUERY}-0-{SPAN - 1}.json", f"{QUERY}-{SPAN}.json"]
    assert sorted(map(str, rows_of(tmp_path, visible))) == sorted(map(str, before))
    assert len(before) == SPAN + 1


def test_a_second_merge_changes_nothing(tmp_path: Path) -> None:
    for batch in (0, 3, SPAN):
        commit(tmp_path, batch)
    assert merge_ledger(str(tmp_path)) == MergeResult(2, 1, 0)
    assert merge_ledger(str(tmp_path)) == MergeResult(0, 0, 0)


def test_covered_files_are_removed_after_an_hour(tmp_path: Path) -> None:
    for batch in (0, 3, SPAN):
        commit(tmp_path, batch)
    merge_ledger(str(tmp_path))
    assert (tmp_path / f"{QUERY}-3.json").exists()
    age(tmp_path, 3700, f"{QUERY}-0-*")
    assert merge_ledger(str(tmp_path)) == MergeResult(0, 0, 2)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_merged_files_are_merged_again(tmp_path: Path) -> None:
    for number in range(SPAN):
        commit(tmp_path, 0, f"{QUERY}-{number * SPAN}-{number * SPAN + SPAN - 1}")
    commit(tmp_path, MERGE_WIDTHS[1])
    assert merge_ledger(str(tmp_path)) == MergeResult(SPAN, 1, 0)
    visible = visible_files(str(tmp_path))
    assert visible == [f"{QUERY}-0-{MERGE_WIDTHS[1] - 1}.json", f"{QUERY}-{MERGE_WIDTHS[1]}.json"]
    assert len(rows_of(tmp_path, visible)) == SPAN + 1


def test_a_removed_part_does_not_shrink_a_merged_file(tmp_path: Path) -> None:
    """A process that lists the ledger while another removes covered files does not write the rest as a span."""
    for batch in (0, 1, 2, SPAN):
        commit(tmp_path, batch)
    merge_ledger(str(tmp_path))
    (tmp_path / f"{QUERY}-1.json").unlink()
    merge_ledger(str(tmp_path))
    assert len(rows_of(tmp_path, visible_files(str(tmp_path)))) == 4


def test_old_batch_jobs_are_merged_by_time_and_named_runs_never(tmp_path: Path) -> None:
    for job in range(3):
        commit(tmp_path, -1, str(UUID(int=job)))
    commit(tmp_path, -1, f"run-{UUID(int=9)}")
    age(tmp_path, (SPAN + 120) * 60)
    commit(tmp_path, -1, str(UUID(int=4)))
    assert merge_ledger(str(tmp_path)) == MergeResult(3, 1, 0)
    visible = visible_files(str(tmp_path))
    assert [name.partition("-")[0] for name in visible] == [str(UUID(int=4)).partition("-")[0], "jobs", "run"]
    assert len(rows_of(tmp_path, visible)) == 5


def test_a_copy_without_file_times_has_each_batch_job_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    monkeypatch.setattr(batch_job, "try_merge_ledger", lambda _: None)  # chance would let one commit in 64 merge
    now, long_ago = time.time(), time.time() - (SPAN + 120) * 60
    for at in (long_ago, long_ago, now):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        result = TaskResult(TaskAttempt("job", -1, 0, 0), "host", {("t", 0): 10}, "delivered", delivered=10)
        BatchJob(SinkOptions("/s", "t", ledger=str(source))).commit([result])
    shutil.copytree(source, tmp_path / "early", copy_function=shutil.copyfile)
    assert merge_ledger(str(tmp_path / "early")) == MergeResult(2, 1, 0), "a copy is merged like its source"
    assert merge_ledger(str(source)) == MergeResult(2, 1, 0)
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    visible = visible_files(str(copy))
    assert visible == visible_files(str(source))
    assert len(rows_of(copy, visible)) == 3
    assert merge_ledger(str(copy)) == MergeResult(0, 0, 0)


def test_a_copy_without_file_times_has_each_batch_job_of_1_0_0_once(tmp_path: Path) -> None:
    """Release 1.0.0 named a file by the id of the job alone, so only the content shows that it is merged."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    ids = [str(UUID(int=number, version=4)) for number in range(4)]

    def commit_job(job_id: str) -> None:
        result = TaskResult(TaskAttempt(job_id, -1, 0, 0), "host", {("t", 0): 10}, "delivered", delivered=10)
        write_ledger(str(source), [result], name=job_id)

    for job_id in ids[:2]:
        commit_job(job_id)
    age(source, (3 * SPAN + 120) * 60)
    assert merge_ledger(str(source)) == MergeResult(2, 1, 0)
    for job_id in ids[2:]:
        commit_job(job_id)
    shutil.copytree(source, copy, copy_function=shutil.copyfile)
    visible = visible_files(str(copy))
    assert visible == visible_files(str(source))
    assert sorted(str(row["query"]) for row in rows_of(copy, visible)) == ids
    parts = [f"{copy}/{job_id}.json" for job_id in ids]
    assert visible_paths(parts) == parts, "no merged file is among the given ones"
    age(copy, (SPAN + 120) * 60)
    assert merge_ledger(str(copy)) == MergeResult(2, 1, 0), "a part is not merged again"
    assert sorted(str(row["query"]) for row in rows_of(copy, visible_files(str(copy)))) == ids


def test_a_file_of_a_late_clock_is_not_removed(tmp_path: Path) -> None:
    """A driver whose clock is hours behind commits into a range of minutes that is already merged."""
    first = (int(time.time() // 60) // SPAN - 2) * SPAN
    names = [f"jobs-{first + number}-{UUID(int=number)}" for number in range(3)]
    for number, name in enumerate(names):
        result = TaskResult(TaskAttempt(str(UUID(int=number)), -1, 0, 0), "host", {("t", 0): 10}, "delivered")
        write_ledger(str(tmp_path), [result], name=name)
        if number == 1:
            assert merge_ledger(str(tmp_path)) == MergeResult(2, 1, 0)
    age(tmp_path, 3700, f"jobs-{first}-{first + SPAN - 1}.json")
    assert merge_ledger(str(tmp_path)) == MergeResult(0, 0, 2)
    assert (tmp_path / f"{names[2]}.json").exists()


def test_files_given_by_name_are_read_once(tmp_path: Path) -> None:
    for batch in (0, 3, SPAN):
        commit(tmp_path, batch)
    commit(tmp_path, -1, "run-nightly")
    merge_ledger(str(tmp_path))
    ledger = f"{tmp_path}/ledger.json"
    shutil.copytree(tmp_path, ledger)
    files = sorted(str(path) for path in tmp_path.glob("*.json") if path.is_file())
    visible = [f"{tmp_path}/{name}" for name in visible_files(str(tmp_path))]
    assert sorted(visible_paths(files)) == sorted(visible)
    others = [f"{tmp_path}/", f"file://{tmp_path}", f"{tmp_path}/link"]
    (tmp_path / "link").symlink_to(tmp_path)
    paths = visible_paths([str(tmp_path), *files, *others])
    assert sorted(path.rpartition("/")[2] for path in paths) == sorted(visible_files(str(tmp_path))), "each once"
    part = f"{tmp_path}/{QUERY}-3.json"
    assert visible_paths([part]) == [part], "a file that is covered by none of the given ones"
    assert visible_paths([f"{tmp_path}/*.json"]) == [f"{tmp_path}/*.json"]
    assert visible_paths([ledger]) == [f"{ledger}/{name}" for name in visible_files(ledger)]
    assert visible_paths([str(tmp_path)], time.time() + 60) == [], "no file is as new"


def test_unfinished_files_are_not_visible(tmp_path: Path) -> None:
    commit(tmp_path, 0)
    (tmp_path / f"{QUERY}-1.json.0a.part").write_text("{")
    assert visible_files(str(tmp_path)) == [f"{QUERY}-0.json"]
    files = [str(path) for path in tmp_path.iterdir()]
    assert visible_paths(files) == [f"{tmp_path}/{QUERY}-0.json"], "as a glob matches them"
    (tmp_path / f"{QUERY}-0.json").unlink()
    assert visible_paths([str(tmp_path)]) == []


@pytest.mark.parametrize(("kept", "fault"), [(30, "ends with a cut line"), (0, "is empty")])
def test_a_cut_file_is_not_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int, fault: str) -> None:
    for batch in (0, 1, SPAN, SPAN + 1, 2 * SPAN):
        commit(tmp_path, batch)
    cut = tmp_path / f"{QUERY}-0.json"
    content = cut.read_bytes()
    cut.write_bytes(content[:kept])
    assert main(["ledger", "compact", str(tmp_path)]) == 1
    assert f"The ledger file {cut} {fault}" in capsys.readouterr().err
    try_merge_ledger(str(tmp_path))  # after a commit it is only logged
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.count("-") > 5) == [
        f"{QUERY}-{SPAN}-{2 * SPAN - 1}.json"
    ], "the other range is merged, and no unfinished file remains"
    cut.write_bytes(content)
    assert merge_ledger(str(tmp_path)) == MergeResult(2, 1, 0)
    assert len(rows_of(tmp_path, visible_files(str(tmp_path)))) == 5


def test_an_empty_file_is_refused_unless_it_is_covered(tmp_path: Path) -> None:
    for batch in (0, 3, SPAN):
        commit(tmp_path, batch)
    merge_ledger(str(tmp_path))
    (tmp_path / f"{QUERY}-3.json").write_bytes(b"")
    assert len(visible_paths([str(tmp_path)])) == 2
    for name in (f"{QUERY}-{SPAN}.json", "run-nightly.json"):
        empty = tmp_path / name
        empty.write_bytes(b"")
        for given in (str(tmp_path), str(empty)):
            with pytest.raises(LedgerFileError, match=f"{re.escape(str(empty))} is empty"):
                visible_paths([given])
        empty.unlink()


def test_the_command_reports_its_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for batch in (0, 3, SPAN):
        commit(tmp_path, batch)
    assert main(["ledger", "compact", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "2 files merged into 1; 0 files removed that were merged before\n"
    assert main(["ledger", "compact", str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err


def test_the_audit_reads_each_commit_once(spark: SparkSession, tmp_path: Path) -> None:
    for batch in (*range(40), SPAN):
        commit(tmp_path, batch)
    merge_ledger(str(tmp_path))
    assert len(list(tmp_path.glob("*.json"))) == 42
    assert read_ledger(spark, [str(tmp_path)], ["t"]).count() == 41
