"""Tasks of a job, as far as they need no Spark."""

from __future__ import annotations

import gc

from bruce_mp.spark.batch_job import freeze_garbage_collector


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
