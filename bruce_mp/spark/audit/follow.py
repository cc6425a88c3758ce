"""Run the audit continuously: write facts about new messages, and report each minute once it is closed.

A minute is *closed* once no more messages of it are expected, that is, once Spark's watermark has passed it. The
watermark is the newest timestamp read so far less the lateness. A message may have a timestamp in the future, so the
start of the last read less the lateness limits the watermark. The watermark stops while the topics get no messages.
Therefore a minute is also closed once all messages in Kafka are read and the minute is older than the lateness plus the
interval of reads. Each report covers all closed minutes of the window, so messages that come after their minute is
closed count in the next report. The first report after a longer pause also covers the minutes since the last one.

A task commits to the ledger after the delivery of its messages. So a report covers the files of the ledgers that were
there before the last read of Kafka began: in newer ones, messages may be of closed minutes, but not read.

OUTPUT/checkpoint keeps the progress of reading, and OUTPUT/reported the end of the last report.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Final

from bruce_mp.spark.audit.kafka_source import stream_topics
from bruce_mp.spark.audit.report import remove_report
from bruce_mp.spark.audit.run import Audit, AuditInputError, check_paths, compare, expand_glob, write_facts
from bruce_mp.spark.kafka_admin import missing_topics
from bruce_mp.spark.ledger import MINUTE_MS, write_atomically
from bruce_mp.spark.ledger_files import visible_paths
from bruce_mp.spark.pipelines.progress import Progress
from bruce_mp.spark.storage import absolute_path, list_files, open_directory, read_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from bruce_mp.spark.audit.report import AuditVerdict

__all__ = ["Follow", "follow"]

_POLL_INTERVAL_S: Final = 1
_MAX_LAST_READ_S: Final = 30
"""A limit of the read before the last report, because systemd kills a service 90 s after SIGTERM."""
_MAX_LISTING_AGE_MS: Final = 20 * 60_000
"""A limit of the age of a list of ledger files, because files that a merge has covered are removed after an hour."""
_REPORTED_UNTIL: Final = "until_ms"
_NONE_CLOSED: Final = -1  # instead of the end of a minute


@dataclass(frozen=True, slots=True)
class Follow:
    """The plan of a continuous audit.

    Spark reads new messages every `every_s`. Messages are expected to be at most `lateness_s` late. A report covers the
    last `window_s`. The audit ends after `until_idle_s` without messages (None: never), and after the first bad
    report if `stop_when_bad` is True.
    """

    audit: Audit
    every_s: int = 30
    lateness_s: int = 120
    window_s: int = 2 * 3600
    until_idle_s: int | None = None
    stop_when_bad: bool = False


def follow(
    spark: SparkSession, plan: Follow, stop: Event | None = None, progress: Progress | None = None
) -> Iterator[AuditVerdict]:
    """Yield the verdict of each report until `stop` is set or the plan ends.

    Raise AuditInputError if a topic or path does not exist, or the error that stops the stream.
    """
    display = progress or Progress("audit")
    absent = missing_topics(spark, plan.audit.kafka_options, plan.audit.topics)
    if absent:
        raise AuditInputError(
            f"--topic {', '.join(absent)}: the brokers have no such topic. Create it, or audit without --follow, which "
            "counts its messages as missing."
        )
    ledgers = _EarlierLedgers(spark, plan)
    query = _start_query(spark, plan)
    try:
        for closed_until_ms, audit in _closed_minutes(
            query, ledgers, stop or Event(), display, lambda: _end(spark, plan)
        ):
            _remove_old_facts(plan)
            check_paths(spark, plan.audit)  # not before the first report, because a ledger may appear after the start
            first_ms = min(closed_until_ms - plan.window_s * 1000, _reported_until(plan))
            minute_condition = f"minute >= {first_ms} and minute < {closed_until_ms}"
            verdict = compare(spark, audit, minute_condition, changed_after=_oldest_needed(plan))
            _keep_reported_until(plan, closed_until_ms)
            display.show_line(f"up to {datetime.fromtimestamp(closed_until_ms / 1000, UTC):%Y-%m-%d %H:%M}: {verdict}")
            yield verdict
            if plan.stop_when_bad and not verdict.is_good:
                return
    finally:
        query.stop()


def _start_query(spark: SparkSession, plan: Follow) -> StreamingQuery:
    """Start the query that reads new messages until it is stopped.

    Without a checkpoint it reads all messages, so facts of earlier runs would double them. Raise AuditInputError if a
    run without `--follow` has replaced the facts since the last read.
    """
    output = absolute_path(plan.audit.output)
    system, facts = open_directory(plan.audit.facts_directory)
    if not read_texts(f"{output}/checkpoint"):
        system.delete_dir_contents(facts)
    elif list_files(plan.audit.facts_directory)[1]:  # the facts of `follow` are in directories
        raise AuditInputError(
            f"--output {output}: an audit without --follow has replaced what --follow had read. Give another "
            f"directory, or remove {output}/checkpoint to read the topics anew."
        )
    remove_report(output)
    return _facts_writer(spark, plan).trigger(processingTime=f"{plan.every_s} seconds").start()


def _facts_writer(spark: SparkSession, plan: Follow) -> DataStreamWriter:
    """Return the writer of the facts of each micro-batch, into a directory with the micro-batch's number."""
    messages = stream_topics(spark, plan.audit.kafka_options, plan.audit.topics)
    watermarked = messages.withWatermark("timestamp", f"{plan.lateness_s} seconds")
    writer = watermarked.writeStream.option("checkpointLocation", f"{absolute_path(plan.audit.output)}/checkpoint")
    return writer.foreachBatch(lambda batch, number: write_facts(batch, f"{plan.audit.facts_directory}/{number:08}"))


def _audit_of_present_files(spark: SparkSession, plan: Follow) -> Audit:
    """Return the plan's audit with the present files of the ledgers only."""
    ledgers = [match for path in plan.audit.ledgers for match in expand_glob(spark, path)]
    return replace(plan.audit, ledgers=visible_paths(ledgers, _oldest_needed(plan).timestamp()))


class _EarlierLedgers:
    """The files of the ledgers that were there before the last finished read of Kafka began."""

    def __init__(self, spark: SparkSession, plan: Follow) -> None:
        self.plan = plan
        self._spark = spark
        self.audit = self._next_audit = _audit_of_present_files(spark, plan)
        """The plan's audit with only these files."""
        self._next_ms = _now_ms()

    def follow_reads(self, read_ms: int) -> None:
        """Change to newer files if the last read of Kafka began after their listing, and list the next ones."""
        if max(read_ms, _now_ms() - _MAX_LISTING_AGE_MS) > self._next_ms:
            self.audit, self._next_audit = self._next_audit, _audit_of_present_files(self._spark, self.plan)
            self._next_ms = _now_ms()


def _end(spark: SparkSession, plan: Follow) -> tuple[int, Audit] | None:
    """Read the messages that came after the last read, and return what the last report covers; None if it takes long.

    The report covers the time until now, and the present files of the ledgers.
    """
    audit = _audit_of_present_files(spark, plan)
    now_ms = _now_ms()
    query = _facts_writer(spark, plan).trigger(availableNow=True).start()
    try:
        return (now_ms, audit) if query.awaitTermination(_MAX_LAST_READ_S) else None  # raises the query's error
    finally:
        query.stop()


def _closed_minutes(
    query: StreamingQuery,
    ledgers: _EarlierLedgers,
    stop: Event,
    display: Progress,
    end: Callable[[], tuple[int, Audit] | None],
) -> Iterator[tuple[int, Audit]]:
    """Yield the end of the last closed minute (ms since the epoch) whenever more minutes are closed, and the audit.

    Yield once more when the audit ends: the result of `end` if the query has read all messages in Kafka, so that the
    last report covers everything, or else the end of the last closed minute again.
    """
    plan, closed_until_ms, last_message_s, last_batch = ledgers.plan, _NONE_CLOSED, time.monotonic(), -1
    while not stop.is_set() and not query.awaitTermination(_POLL_INTERVAL_S):  # raises the error that stopped the query
        reports = query.recentProgress
        newest_batch = max((report.batchId for report in reports if report.numInputRows), default=-1)
        if newest_batch != last_batch:
            last_batch, last_message_s = newest_batch, time.monotonic()
            row_count = sum(report.numInputRows for report in reports)
            display.show(f"{row_count:,} messages in the last {len(reports)} batches")
        ledgers.follow_reads(_last_read(query, plan))
        newly_closed_until_ms = _closed_until(query, plan)
        if newly_closed_until_ms > closed_until_ms:
            closed_until_ms = newly_closed_until_ms
            yield closed_until_ms, ledgers.audit
        idle_s = time.monotonic() - last_message_s
        if plan.until_idle_s is not None and idle_s > plan.until_idle_s and _has_read_all(query):
            break
    has_read_all = _has_read_all(query)  # before the stop, because for a stopped query it is always True
    query.stop()
    everything = end() if has_read_all else None
    if everything is not None:
        yield everything
    elif closed_until_ms != _NONE_CLOSED:
        yield closed_until_ms, ledgers.audit


def _last_read(query: StreamingQuery, plan: Follow) -> int:
    """Return when the last finished read began, or an earlier time if it found no messages; in ms since the epoch."""
    report = query.lastProgress
    began_ms = _parse_ms(report["timestamp"]) if report else 0
    # Spark reports only some of the reads without messages. The last one ended before the last poll.
    return max(began_ms, _now_ms() - plan.every_s * 1000) if _has_read_all(query) else began_ms


def _closed_until(query: StreamingQuery, plan: Follow) -> int:
    """Return the end of the last closed minute in ms since the epoch, or `_NONE_CLOSED`."""
    passed_until_ms = _last_read(query, plan) - plan.lateness_s * 1000
    if not _has_read_all(query):
        report = query.lastProgress
        watermark = report["eventTime"].get("watermark") if report else None
        passed_until_ms = min(passed_until_ms, _parse_ms(watermark)) if watermark else _NONE_CLOSED
    return passed_until_ms - passed_until_ms % MINUTE_MS if passed_until_ms > 0 else _NONE_CLOSED


def _parse_ms(time_text: str) -> int:
    return int(datetime.fromisoformat(time_text).timestamp() * 1000)


def _has_read_all(query: StreamingQuery) -> bool:
    """Return True if the query, which must be running, found no new messages when it last asked Kafka."""
    status = query.status
    return query.lastProgress is not None and not status["isDataAvailable"] and not status["isTriggerActive"]


def _reported_until(plan: Follow) -> int:
    """Return the end of the minutes that the last report covers (ms since the epoch); the far future without report."""
    texts = read_texts(f"{absolute_path(plan.audit.output)}/reported")
    return int(texts.get(_REPORTED_UNTIL, sys.maxsize))


def _keep_reported_until(plan: Follow, closed_until_ms: int) -> None:
    """Write the file for `_reported_until`, without minutes of which messages may still come."""
    system, root = open_directory(f"{absolute_path(plan.audit.output)}/reported")
    minute = (closed_until_ms - plan.lateness_s * 1000) // MINUTE_MS
    write_atomically(system, f"{root}/{_REPORTED_UNTIL}", [b"%d" % (minute * MINUTE_MS)])


def _oldest_needed(plan: Follow) -> datetime:
    """Return the time before which ledger files are ignored, and facts removed: a window before the next report's."""
    first_s = min(time.time() - plan.window_s, _reported_until(plan) / 1000)
    return datetime.fromtimestamp(first_s - plan.window_s, UTC)


def _remove_old_facts(plan: Follow) -> None:
    """Remove the facts of micro-batches that no report needs any more."""
    from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to import

    system, root = open_directory(plan.audit.facts_directory)
    last_writes: dict[str, datetime] = {}
    for entry in system.get_file_info(FileSelector(root, recursive=True)):
        if entry.is_file and entry.mtime is not None:
            batch = entry.path.removeprefix(f"{root}/").partition("/")[0]
            last_writes[batch] = max(entry.mtime, last_writes.get(batch, entry.mtime))
    oldest_needed = _oldest_needed(plan)
    for batch, last_write in last_writes.items():
        if last_write < oldest_needed:
            system.delete_dir(f"{root}/{batch}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
