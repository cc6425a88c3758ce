"""Run one Spark task: encode its Arrow batches, send them, and return the outcome that the daemon answers.

This module does not import Spark, so tests can call it with Arrow batches and a socket.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bruce_mp.protocol.client.barrier import BarrierAnswer, BarrierStatus, Level
from bruce_mp.protocol.client.fence import encode_begin, encode_end
from bruce_mp.spark.channel import Channel
from bruce_mp.spark.discard_texts import describe_discards, describe_earlier_discards, format_outcome
from bruce_mp.spark.encode import MessageEncoder, Rows
from bruce_mp.spark.errors import RowError, TaskError
from bruce_mp.spark.ledger import MINUTE_MS, TaskAttempt, TaskResult
from bruce_mp.spark.options import Acks, OnDiscard, SinkOptions
from bruce_mp.spark.repeated_task import RepeatedRows, resolve_earlier_attempt
from bruce_mp.spark.storage import open_directory
from bruce_mp.spark.task_ledger import RowsDigest, TaskEntry, TaskLedger
from bruce_mp.spark.validation import DEFAULT_LIMITS, BadRow, RowLimits, RowValidator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

__all__ = ["DeadLetters", "TaskRateLimit", "run_task"]

_SLICE_BYTES: Final = 4 << 20
"""At most so many bytes of messages are encoded and sent together: a compromise of system calls and memory."""
_SHOWN_BYTES: Final = 80
"""How many bytes of a bad row's key, and of its value, the text of an error has."""
_BARRIER_LEVELS: Final = {Acks.RECEIVED: Level.RECEIVED, Acks.DELIVERED: Level.DELIVERED}


def run_task(
    options: SinkOptions, attempt: TaskAttempt, batches: Iterable[pa.RecordBatch], time_zone: str | None = None
) -> TaskResult:
    """Send all rows of a task, and wait for the acknowledgement that `options.acks` names.

    If an earlier attempt of the task is complete, send nothing and return its result. `time_zone` is for timestamps
    without a zone; None: this host's zone.

    Raise `RowError` for a row that cannot be a message if there is no dead-letter path. Raise `TaskError` if the daemon
    is absent, closes the connection, discards messages, or does not deliver in time.
    """
    steps = _TaskSteps(options, attempt, time_zone)
    earlier_outcome = steps.resolve_earlier_attempt()
    if earlier_outcome is not None:
        return steps.adopt_result(earlier_outcome, batches)
    with (
        Channel(options.socket, options.timeout_ms, options.connect_timeout_ms) as channel,
        DeadLetters(options.dead_letter_path, attempt, options.topic) as dead_letters,
    ):
        steps.apply_limits(RowLimits.of(channel.inquire(), options.max_record_bytes))
        for batch in batches:
            steps.begin(channel, keeps_timestamps="timestamp" in batch.schema.names)
            steps.send(channel, dead_letters, batch)
        steps.end(channel, dead_letters)
        answer = _request_answer(channel, options) if options.acks in _BARRIER_LEVELS else None
    return steps.conclude(answer, dead_letters.count)


class _TaskSteps:
    """The steps of one attempt of a task, with the attempt's encoder, rate limit and counts of rows."""

    def __init__(self, options: SinkOptions, attempt: TaskAttempt, time_zone: str | None) -> None:
        self._options = options
        self._attempt = attempt
        topic = None if options.topic is None else options.topic.encode()
        author = attempt.author.encode() if options.stamp else None
        self._encoder = MessageEncoder(topic, author, options.partitioner, time_zone)
        self.apply_limits(DEFAULT_LIMITS)  # until the daemon answers
        self._rate = TaskRateLimit(options.max_records_per_second)
        self._ledger = TaskLedger(options.ledger) if options.ledger and options.is_exactly_once else None
        self._earlier_entry = None if self._ledger is None else self._ledger.find(attempt)
        """The ledger's entry about an earlier attempt of this task."""
        self._digest = RowsDigest()
        self._address = os.path.expandvars(options.socket)
        self._has_begun = False
        self._read_count = 0
        self._sent_count = 0
        self._row_counts: Counter[tuple[str, int]] = Counter()

    def apply_limits(self, limits: RowLimits) -> None:
        """Validate all further rows by these limits."""
        self._validator = RowValidator(self._encoder, limits)

    def resolve_earlier_attempt(self) -> TaskEntry | None:
        """Return the outcome of a complete or skipped earlier attempt; None if the task must send its rows."""
        return None if self._earlier_entry is None else resolve_earlier_attempt(self._earlier_entry, self._options)

    def adopt_result(self, earlier: TaskEntry, batches: Iterable[pa.RecordBatch]) -> TaskResult:
        """Store and return the result of an earlier attempt. Raise `TaskError` if this task has other rows."""
        rows = RepeatedRows(self._attempt, self._options)
        for batch in batches:
            rows.update(self._encoder.convert(batch))
        rows.check(earlier)
        if self._ledger is not None:
            self._ledger.store(earlier)
        self._check_discards(earlier.result, earlier)
        return earlier.result

    def begin(self, channel: Channel, *, keeps_timestamps: bool) -> None:
        """Send the frames that precede the first row, if this is the first call.

        If `keeps_timestamps` is True, the frames ask the daemon to keep the messages' timestamps of any age.
        """
        if self._has_begun:
            return
        self._has_begun = True
        if self._options.fence or keeps_timestamps:
            # All attempts of a task have the same name then, so that the daemon completes only one of them.
            is_unique = self._ledger is not None
            name = self._attempt.task if is_unique else self._attempt.author
            channel.send(encode_begin(name, keeps_timestamps=keeps_timestamps, is_unique=is_unique))
        if keeps_timestamps and not self._options.fence:
            channel.send(encode_end())  # without a fence, the begin frame only serves to keep timestamps

    def end(self, channel: Channel, dead_letters: DeadLetters) -> None:
        """Publish the dead letters, and send the frame that completes the attempt.

        If there is a ledger, store the intent to complete the attempt between the two.
        """
        self.begin(channel, keeps_timestamps=False)  # for a task without batches, this is the first call
        dead_letters.publish()  # before the intent, because a task that adopts a complete attempt writes none
        if self._ledger is not None:
            self._store_intent(self._ledger, dead_letters.count)
        if self._options.fence:
            channel.send(encode_end())

    def _store_intent(self, ledger: TaskLedger, dead_letter_count: int) -> None:
        """Store the intent to complete the attempt. Raise `TaskError` if another attempt of the task stored one."""
        text = f"Another attempt of task {self._attempt.task} is ending. This one does not complete."
        if ledger.find(self._attempt) != self._earlier_entry:  # another executor runs an attempt of this task
            raise TaskError(text)
        try:
            self._store(ledger, self._unanswered_result(dead_letter_count), is_done=False)
        except FileExistsError as error:  # the other attempt stored its intent since the call of `find`
            raise TaskError(text) from error

    def _store(self, ledger: TaskLedger, result: TaskResult, *, is_done: bool) -> None:
        now_ms = time.time_ns() // 1_000_000
        entry = TaskEntry(result, str(self._digest), self._address, now_ms, is_done)
        ledger.store(entry, replaces=is_done or self._earlier_entry is not None)

    def send(self, channel: Channel, dead_letters: DeadLetters, batch: pa.RecordBatch) -> None:
        """Send the valid rows of a batch at the limited rate, and count them."""
        now_ms = time.time_ns() // 1_000_000
        rows = self._valid_rows(batch, dead_letters)
        for part in _split_rows(rows, self._rate.max_rows_per_send):
            self._rate.wait(part.count)
            channel.send(self._encoder.encode(part, self._sent_count, now_ms))
            self._sent_count += part.count
            self._row_counts.update(count_rows(part, self._options, now_ms))

    def conclude(self, answer: BarrierAnswer | None, dead_letter_count: int) -> TaskResult:
        """Store the result in the ledger and return it.

        Raise `TaskError` if the answer is not final, or has discards that `onDiscard` does not accept.
        """
        if answer is None:  # acks=none, so there is no task ledger
            return self._unanswered_result(dead_letter_count)
        # A discard reason that only newer daemons know is a number here.
        discards = {getattr(reason, "name", str(reason)): count for reason, count in answer.reasons.items()}
        self._check_answer(answer, discards)
        delivered = answer.delivered if self._options.acks is Acks.DELIVERED else None
        result = replace(self._unanswered_result(dead_letter_count), delivered=delivered, discarded=discards)
        if self._ledger is not None:
            self._store(self._ledger, result, is_done=True)
        self._check_discards(result)
        return result

    def _unanswered_result(self, dead_letter_count: int) -> TaskResult:
        return TaskResult(
            self._attempt, socket.gethostname(), dict(self._row_counts), self._options.acks.value, self._options.stamp,
            dead_letters=dead_letter_count,
        )  # fmt: skip

    def _check_answer(self, answer: BarrierAnswer, discards: dict[str, int]) -> None:
        """Raise `TaskError` if the answer is not final, or is not about all messages of the task."""
        outcome = format_outcome(self._sent_count, answer.received, answer.delivered, discards)
        if answer.status is not BarrierStatus.DONE:
            raise TaskError(f"{self._address}: {_STATUS_TEXTS[answer.status]}: {outcome}.")
        if answer.received != self._sent_count:
            raise TaskError(f"{self._address}: the counts of daemon and task differ: {outcome}. Report this as a bug.")

    def _check_discards(self, result: TaskResult, earlier: TaskEntry | None = None) -> None:
        """Raise `TaskError` if messages were discarded, unless `onDiscard` accepts this.

        `earlier` is the entry about the earlier attempt if `result` is the result of one.
        """
        if not result.discarded or self._options.on_discard is not OnDiscard.FAIL:
            return
        if earlier is not None:
            raise TaskError(f"{earlier.address}: {describe_earlier_discards(earlier, self._options)}")
        raise TaskError(f"{self._address}: {describe_discards(result, self._options)}")

    def _valid_rows(self, batch: pa.RecordBatch, dead_letters: DeadLetters) -> Rows:
        """Return the rows that can be messages. Write the other rows as dead letters, or raise `RowError`."""
        rows = self._encoder.convert(batch)
        if self._ledger is not None:
            self._digest.update(rows)
        first_number = self._read_count + 1
        self._read_count += rows.count
        bad_rows = self._validator.find_bad_rows(rows)
        if not bad_rows:
            return rows
        if not dead_letters.is_enabled:
            place = f"Row {first_number + bad_rows[0].row} of partition {self._attempt.partition}"
            raise RowError(f"{place} {_describe_bad_row(rows, bad_rows[0])}")
        is_bad = np.zeros(rows.count, np.bool_)
        is_bad[[each.row for each in bad_rows]] = True
        dead_letters.write(batch.filter(pa.array(is_bad)), [each.text for each in bad_rows])
        return self._encoder.convert(batch.filter(pa.array(~is_bad)))


def _describe_bad_row(rows: Rows, bad: BadRow) -> str:
    key = "no key" if rows.key is None else _shorten(rows.key[bad.row].as_py(), "key")
    value = _shorten(rows.value[bad.row].as_py(), "value")
    return (
        f"({key}, {value}) cannot be a message: {bad.text}. Correct or filter it, or set 'deadLetterPath' to write "
        "such rows there."
    )


def _shorten(content: bytes | None, name: str) -> str:
    """Return for example `key "k"` or, if the content is long, `key begins "k"` with its first bytes."""
    if content is None:
        return f"no {name}"
    is_long = len(content) > _SHOWN_BYTES
    return f'{name} {"begins " * is_long}"{content[:_SHOWN_BYTES].decode(errors="backslashreplace")}"'


_STATUS_TEXTS: Final = {
    BarrierStatus.TIMED_OUT: "not all messages were delivered in time (option 'timeoutMs')",
    BarrierStatus.SHUTTING_DOWN: "the daemon is being shut down and keeps the rest for its next start",
    BarrierStatus.MALFORMED: "the daemon did not understand the barrier. Report this as a bug",
    BarrierStatus.UNSUPPORTED_VERSION: "the daemon is older than this package: upgrade it",
}


def _request_answer(channel: Channel, options: SinkOptions) -> BarrierAnswer:
    """Ask the daemon for the outcome of the task's messages, and return its answer.

    Ask again after a time-out if messages were settled since the previous time-out.
    """
    previous_count = 0
    while True:
        answer = channel.request_outcome(_BARRIER_LEVELS[options.acks], options.timeout_ms)
        settled_count = answer.delivered + answer.discarded
        if answer.status is not BarrierStatus.TIMED_OUT or settled_count == previous_count:
            return answer
        previous_count = settled_count


def _split_rows(rows: Rows, max_rows: int) -> Iterator[Rows]:
    """Yield slices of at most `max_rows` rows and `_SLICE_BYTES` bytes; a larger row is a slice alone."""
    end_bytes = np.cumsum(rows.sizes)
    start = 0
    while start < rows.count:
        start_byte = end_bytes[start - 1] if start else 0
        fitting_stop = int(np.searchsorted(end_bytes, start_byte + _SLICE_BYTES, "right"))
        stop = min(max(fitting_stop, start + 1), start + max_rows, rows.count)
        yield rows if (start, stop) == (0, rows.count) else rows.slice(start, stop)
        start = stop


def count_rows(rows: Rows, options: SinkOptions, now_ms: int) -> Counter[tuple[str, int]]:
    """Count messages by topic and minute (the minute's start in ms since the epoch).

    With stamps, it is the minute of the stamp's time `now_ms`, because brokers may replace timestamps, but not stamps.
    Without stamps, it is the minute of the timestamp.
    """
    is_one_minute = options.stamp or rows.timestamp is None
    this_minute = now_ms - now_ms % MINUTE_MS
    if rows.topic is None and is_one_minute:
        return Counter({(options.topic or "", this_minute): rows.count})
    minutes = np.full(rows.count, this_minute) if is_one_minute else rows.minutes(now_ms)
    topics = rows.topic if rows.topic is not None else pa.array([(options.topic or "").encode()] * rows.count)
    table = pa.table({"topic": topics, "minute": minutes}).group_by(["topic", "minute"]).aggregate([([], "count_all")])
    counts = zip(table["topic"].to_pylist(), table["minute"].to_pylist(), table["count_all"].to_pylist(), strict=True)
    return Counter({(topic.decode(errors="backslashreplace"), minute): count for topic, minute, count in counts})


# --- dead letters ----------------------------------------------------------------------------------------------------
class DeadLetters:
    """A Parquet file for the bad rows of one attempt, in the directory `uri`. The first bad row creates the file.

    Spark and Arrow do not read the file before `publish`, because its name begins with a dot. The end of the context
    removes an unpublished file: a repeated task writes the rows again. After a kill it stays under that name.

    If `uri` is None, rows cannot be written. `topic` is the topic of rows that name none. `count` is the number of
    written rows.
    """

    def __init__(self, uri: str | None, attempt: TaskAttempt, topic: str | None) -> None:
        self._uri = uri
        self._attempt = attempt
        self._topic = topic
        self._file: _HiddenFile | None = None
        self.count = 0

    @property
    def is_enabled(self) -> bool:
        return self._uri is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.remove()

    def publish(self) -> None:
        """Close the file, if there is one, and give it the name of the attempt. Raise OSError."""
        if self._file is not None:
            self._file.publish()
            self._file = None

    def write(self, rows: pa.RecordBatch, reasons: list[str]) -> None:
        """Append `rows`, with the columns `topic`, `reason`, and `writer`, which has the author of the attempt."""
        writers = pa.array([self._attempt.author] * rows.num_rows)
        table = pa.Table.from_batches([rows])
        if "topic" in table.column_names:
            topics = table["topic"]
            if self._topic is not None:
                topics = pc.fill_null(topics, pa.scalar(self._topic, topics.type))
            table = table.set_column(table.column_names.index("topic"), "topic", topics)
        else:
            table = table.append_column("topic", pa.array([self._topic] * rows.num_rows, pa.string()))
        table = table.append_column("reason", pa.array(reasons)).append_column("writer", writers)
        if self._file is None:
            self._file = _HiddenFile(self._uri or "", f"{self._attempt.author.replace('/', '-')}.parquet", table.schema)
        self._file.write(table)
        self.count += rows.num_rows


class _HiddenFile:
    """A new Parquet file in the directory `uri`. Until `publish`, another name that begins with a dot hides it."""

    def __init__(self, uri: str, name: str, schema: pa.Schema) -> None:
        self._system, root = open_directory(uri)
        self._path = f"{root}/{name}"
        # The random part separates attempts of one name: a killed driver's executor may outlive it for a moment.
        self._hidden_path = f"{root}/.{name}.{uuid4().hex}.part"
        self._writer = pq.ParquetWriter(self._hidden_path, schema, filesystem=self._system)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def publish(self) -> None:
        """Close the file, and give it its name; this replaces an earlier file. Raise OSError."""
        self._writer.close()
        self._system.move(self._hidden_path, self._path)

    def remove(self) -> None:
        """Remove the file. Raise no OSError, because the error that ended the task matters more."""
        with suppress(OSError):
            self._writer.close()
        with suppress(OSError):
            self._system.delete_file(self._hidden_path)


# --- rate ------------------------------------------------------------------------------------------------------------

_SENDS_PER_SECOND: Final = 10
"""A task with a limit sends this often, so that the daemon gets the rows evenly."""
_NO_LIMIT: Final = 2**31  # rows, more than any batch has


class TaskRateLimit:
    """A limit of records per second (None: no limit). A pause does not allow more records later."""

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._next_send_s = time.monotonic()

    @property
    def max_rows_per_send(self) -> int:
        """Return the largest number of records that may be sent together."""
        return _NO_LIMIT if self._per_second is None else max(1, self._per_second // _SENDS_PER_SECOND)

    def wait(self, record_count: int) -> None:
        """Sleep until the caller may send `record_count` more records."""
        if self._per_second is None:
            return
        now_s = time.monotonic()
        time.sleep(max(0.0, self._next_send_s - now_s))
        self._next_send_s = max(self._next_send_s, now_s) + record_count / self._per_second
