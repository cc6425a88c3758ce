"""Tasks of a job, as far as they need no Spark."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

from bruce_mp.spark import ledger_files
from bruce_mp.spark.batch_job import BatchJob, freeze_garbage_collector, try_merge_ledger
from bruce_mp.spark.ledger import TaskAttempt, TaskResult
from bruce_mp.spark.options import SinkOptions

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_present_objects_are_exempted_from_garbage_collection_once() -> None:
    freeze_garbage_collector.cache_clear()
    gc.unfreeze()
    try:
        freeze_garbage_collector()
        exempted = gc.get_freeze_count()
        later: list[list[int]] = [[] for _ in range(1000)]
        freeze_garbage_collector()
        assert len(later) < exempted
        assert gc.get_freeze_count() <= exempted, "later objects are collected as usual"
    finally:
        gc.unfreeze()


def test_a_run_that_sends_nothing_again_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = TaskResult(TaskAttempt("r1", -1, 0, 0), "host", {("t", 0): 2}, "delivered", delivered=2)
    named = SinkOptions("/s", "t", ledger=str(tmp_path / "ledger"), run_id="r1")
    BatchJob(named).commit([result])
    BatchJob(replace(named, run_id="r2")).commit([result])
    BatchJob(named).commit([result, replace(result, attempt=TaskAttempt("r1", -1, 1, 0))])
    assert not caplog.messages
    BatchJob(named).commit([result, replace(result, attempt=TaskAttempt("r1", -1, 1, 0))])
    (text,) = caplog.messages
    assert text.startswith("The run r1 was complete before: this job sent nothing. To send its rows again, use another")


def test_a_merge_that_fails_only_warns(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: str) -> None:
        raise ValueError("no such region")

    monkeypatch.setattr(ledger_files, "merge_ledger", fail)
    try_merge_ledger("s3://bucket/ledger")
    assert caplog.messages == ["The files of the ledger s3://bucket/ledger could not be merged: no such region"]
