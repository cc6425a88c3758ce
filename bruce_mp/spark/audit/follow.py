"""Run the audit as a service: land the topics' messages and report each minute once it is closed.

A minute is closed when no more of its messages are expected. That is so once the watermark of the stream has passed it,
or once all messages in Kafka were read and the minute is older than the lateness. The watermark stands still in a
silent topic; the second rule closes its minutes. Each report covers the closed minutes of the window again, so very
late messages still count.

OUTPUT/checkpoint keeps the progress; facts older than two windows are removed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.kafka_source import stream_topics
from bruce_mp.spark.audit.run import Audit, compare, land
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.storage import absolute_path, open_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bruce_mp.spark.audit.report import AuditVerdict

__all__ = ["Follow", "follow"]

_MINUTE_MS: Final = 60_000
_POLL_S: Final = 1
_BEGINNING_MS: Final = -1


@dataclass(frozen=True, slots=True)
class Follow:
    """The plan of a service; times in seconds. `until_idle_s` ends it after that time of silence (None: never)."""

    audit: Audit
    every_s: int = 30
    lateness_s: int = 120
    window_s: int = 2 * 3600
    until_idle_s: int | None = None
    stop_when_bad: bool = False


def follow(
    spark: SparkSession, plan: Follow, stop: Event | None = None, progress: Progress | None = None
) -> Iterator[AuditVerdict]:
    """Yield the verdict of each report until `stop` is set or the plan ends. Raises the error that stops the stream.

    The function may run in any thread.
    """
    display = progress or Progress("audit")
    query = _start(spark, plan)
    try:
        for closed_ms in _closed_minutes(query, plan, stop or Event(), display):
            _prune(plan)
            minutes = f"minute >= {closed_ms - plan.window_s * 1000} and minute < {closed_ms}"
            verdict = compare(spark, plan.audit, minutes, changed_after=_oldest_time(plan))
            display.finish(f"up to {datetime.fromtimestamp(closed_ms / 1000, UTC):%Y-%m-%d %H:%M}: {verdict}")
            yield verdict
            if plan.stop_when_bad and not verdict.is_good:
                return
    finally:
        query.stop()


def _start(spark: SparkSession, plan: Follow) -> StreamingQuery:
    """Land each micro-batch in its own directory, which a repeated batch overwrites."""
    open_directory(plan.audit.facts)
    messages = stream_topics(spark, plan.audit.bootstrap, plan.audit.topics, plan.audit.kafka)
    watched = messages.withWatermark("timestamp", f"{plan.lateness_s} seconds")
    writer = watched.writeStream.option("checkpointLocation", f"{absolute_path(plan.audit.output)}/checkpoint")
    landing = writer.foreachBatch(lambda batch, number: land(batch, f"{plan.audit.facts}/{number:08}"))
    return landing.trigger(processingTime=f"{plan.every_s} seconds").start()


def _closed_minutes(query: StreamingQuery, plan: Follow, stop: Event, display: Progress) -> Iterator[int]:
    """Yield the end of the closed minutes in ms whenever more are closed, and once more at the end."""
    closed, last_message_at, rows = _BEGINNING_MS, time.monotonic(), 0
    while not stop.is_set() and not query.awaitTermination(_POLL_S):  # raises the error that stopped the query
        landed = sum(report.numInputRows for report in query.recentProgress)
        if landed != rows:
            rows, last_message_at = landed, time.monotonic()
            display.show(f"{rows:,} messages in the last {len(query.recentProgress)} batches")
        now_closed = _closed_until(query, plan)
        if now_closed > closed:
            closed = now_closed
            yield closed
        if (
            plan.until_idle_s is not None
            and time.monotonic() - last_message_at > plan.until_idle_s
            and _has_read_all(query)
        ):
            break
    query.stop()
    yield max(closed, _now_ms() if _has_read_all(query) else closed)


def _closed_until(query: StreamingQuery, plan: Follow) -> int:
    """Return the end of the closed minutes in ms."""
    report = query.lastProgress
    watermark = report["eventTime"].get("watermark") if report else None
    passed = int(datetime.fromisoformat(watermark).timestamp() * 1000) if watermark else _BEGINNING_MS
    if _has_read_all(query):
        passed = max(passed, _now_ms() - (plan.every_s + plan.lateness_s) * 1000)
    return passed - passed % _MINUTE_MS if passed > 0 else _BEGINNING_MS


def _has_read_all(query: StreamingQuery) -> bool:
    """Return True if the last poll found no new message."""
    status = query.status
    return query.lastProgress is not None and not status["isDataAvailable"] and not status["isTriggerActive"]


def _oldest_time(plan: Follow) -> datetime:
    """Return the time before which written files are ignored."""
    return datetime.now(UTC) - timedelta(seconds=2 * plan.window_s)


def _prune(plan: Follow) -> None:
    """Remove micro-batches that contain only files too old to be read."""
    from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to import

    system, root = open_directory(plan.audit.facts)
    newest: dict[str, datetime] = {}
    for entry in system.get_file_info(FileSelector(root, recursive=True)):
        if entry.is_file and entry.mtime is not None:
            batch = entry.path.removeprefix(f"{root}/").partition("/")[0]
            newest[batch] = max(entry.mtime, newest.get(batch, entry.mtime))
    for batch, written in newest.items():
        if written < _oldest_time(plan):
            system.delete_dir(f"{root}/{batch}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
