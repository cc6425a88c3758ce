"""Find out if the earlier attempt of a repeated task is complete, incomplete, or in doubt.

An attempt is complete if the daemon received its end frame. Then the repeated task sends nothing, but its rows must be
the same as those of the earlier attempt (`RepeatedRows` checks this).

Before a task sends the end frame, it stores in the ledger its intent to complete the attempt, and after the daemon's
answer the outcome (`task_ledger.py`). If the task dies between the two, the ledger has only the intent. Then the
repeated task asks the daemon of the earlier attempt whether it received the end frame. If this daemon cannot tell, the
attempt is in doubt, and the option `onDoubt` decides.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from bruce_mp.protocol.client.inquiry import AttemptOutcome
from bruce_mp.spark.channel import Channel
from bruce_mp.spark.discard_texts import describe_fresh_start, join_topics
from bruce_mp.spark.errors import TaskError
from bruce_mp.spark.options import Acks, OnDoubt
from bruce_mp.spark.task_ledger import RowsDigest

if TYPE_CHECKING:
    from bruce_mp.protocol.client.inquiry import InquiryAnswer
    from bruce_mp.spark.encode import Rows
    from bruce_mp.spark.ledger import TaskAttempt
    from bruce_mp.spark.options import SinkOptions
    from bruce_mp.spark.task_ledger import TaskEntry

__all__ = ["RepeatedRows", "resolve_earlier_attempt"]

log = logging.getLogger(__name__)
_POLL_INTERVAL_S: Final = 0.05
_COMPLETE_OUTCOMES: Final = frozenset({AttemptOutcome.SETTLED, AttemptOutcome.UNCOUNTED})
_DOUBT_REASONS: Final = {
    AttemptOutcome.NONE: "the daemon's memory of attempts begins after the end of this one",
    AttemptOutcome.LOST: "the slab of the daemon is gone",
    AttemptOutcome.UNAVAILABLE: "the daemon cannot read its memory of attempts",
}
_NO_ANSWER_REASON: Final = "the daemon is older than this package"


def resolve_earlier_attempt(entry: TaskEntry, options: SinkOptions) -> TaskEntry | None:
    """Return the outcome of the earlier attempt if it is complete or skipped; None if the task must send its rows.

    `entry` is the ledger's entry about the earlier attempt. An attempt in doubt is skipped if `onDoubt` is `skip`.
    Raise `TaskError` if an attempt is in doubt and `onDoubt` is `fail`, or if an attempt is complete, but the daemon
    does not settle all its messages within `timeout_ms`.
    """
    if entry.is_done:
        return entry
    host = entry.result.host
    if host != socket.gethostname():
        reason = f"only the daemon on {host} knows the outcome, and this task runs on {socket.gethostname()}"
        return _resolve_doubt(entry, reason, options)
    answer = _ask_until_settled(entry, options)
    if answer is None:
        return _resolve_doubt(entry, _NO_ANSWER_REASON, options)
    if answer.outcome in _COMPLETE_OUTCOMES:
        return _with_outcome(entry, answer, options)
    if answer.outcome is AttemptOutcome.NONE and answer.since_ms <= entry.time_ms:
        # The daemon remembers all attempts completed since `since_ms`, but not this one, so this one is not complete.
        return None
    return _resolve_doubt(entry, _DOUBT_REASONS[answer.outcome], options)


def _ask_until_settled(entry: TaskEntry, options: SinkOptions) -> InquiryAnswer | None:
    """Ask the daemon about the earlier attempt until all messages of a complete attempt are settled.

    Return None if the daemon is too old to answer.
    """
    deadline = time.monotonic() + options.timeout_ms / 1000
    with Channel(entry.address, options.timeout_ms, options.connect_timeout_ms) as channel:
        while True:
            answer = channel.inquire(entry.result.attempt.task.encode())
            if answer is None or answer.outcome is not AttemptOutcome.PENDING:
                return answer
            if time.monotonic() >= deadline:
                raise TaskError(
                    f"{entry.address}: an earlier attempt of task {entry.result.attempt.task} is complete, but not all "
                    "of its messages were delivered in time (option 'timeoutMs')."
                )
            time.sleep(_POLL_INTERVAL_S)


def _with_outcome(entry: TaskEntry, answer: InquiryAnswer, options: SinkOptions) -> TaskEntry:
    """Return the entry with the outcome that the daemon answered."""
    has_counts = answer.outcome is AttemptOutcome.SETTLED and options.acks is Acks.DELIVERED
    discards = {getattr(reason, "name", str(reason)): count for reason, count in answer.reasons.items()}
    result = replace(entry.result, delivered=answer.delivered if has_counts else None, discarded=discards)
    return replace(entry, result=result, is_done=True)


def _resolve_doubt(entry: TaskEntry, reason: str, options: SinkOptions) -> TaskEntry | None:
    """Apply the option `onDoubt` to an attempt in doubt, with the results of `resolve_earlier_attempt`.

    `reason` is a clause that says why the outcome of the attempt is unknown.
    """
    task = entry.result.attempt.task
    doubt = f"It is unknown whether Kafka has the messages of task {task}: the task ended an attempt, but {reason}"
    if options.on_doubt is OnDoubt.FAIL:
        raise TaskError(
            f"{doubt}. Run the job again with option onDoubt=send, which may duplicate these "
            f"{entry.result.message_count} messages, or onDoubt=skip, which may lose them."
        )
    is_skipped = options.on_doubt is OnDoubt.SKIP
    action = "skips its rows" if is_skipped else "sends its rows again"
    log.warning("%s. The task %s (onDoubt=%s).", doubt, action, options.on_doubt.value)
    return replace(entry, is_done=True) if is_skipped else None


class RepeatedRows:
    """The rows of `attempt`, which repeats a complete attempt and must have the same rows."""

    def __init__(self, attempt: TaskAttempt, options: SinkOptions) -> None:
        self._attempt = attempt
        self._options = options
        self._digest = RowsDigest()
        self._topics: set[str] = set()
        self._has_topic_column = False

    def update(self, rows: Rows) -> None:
        self._digest.update(rows)
        if rows.topic is not None:
            self._has_topic_column = True
            names = pc.unique(rows.topic.drop_null()).to_pylist()
            self._topics |= {name.decode(errors="backslashreplace") for name in names}
        elif rows.count:
            self._topics.add(self._options.topic or "")

    def check(self, earlier: TaskEntry) -> None:
        """Raise `TaskError` if the rows, headers or topics differ from those of `earlier`."""
        difference = self._find_difference(earlier)
        if difference:
            fresh_start = describe_fresh_start(self._attempt, self._options)
            raise TaskError(f"Task {self._attempt.task} {difference} If the rows may be sent again, {fresh_start}.")

    def _find_difference(self, earlier: TaskEntry) -> str:
        """Return the difference as a text that continues "Task T"; an empty string if there is no difference."""
        has_same_rows = self._digest.has_rows_of(earlier.digest)
        earlier_topics = {topic for topic, _ in earlier.result.rows}
        # The digest contains the topics of a column, but not the option 'topic', which may differ although the digests
        # are equal. If all rows of an attempt were bad, it has no topics to compare.
        topics_may_differ = not has_same_rows or not self._has_topic_column
        if topics_may_differ and earlier_topics and self._topics and earlier_topics != self._topics:
            is_stream = self._options.run_id is None and self._attempt.batch >= 0
            earlier_names = join_topics(earlier_topics)
            advice = f" Send to topic {earlier_names} until this micro-batch is committed." if is_stream else ""
            return (
                f"was sent to topic {earlier_names} by an earlier run; this one names topic "
                f"{join_topics(self._topics)}. Nothing was sent again.{advice}"
            )
        contrast = (
            f"than its delivered attempt on {earlier.result.host}, so the sink can neither send nor skip the rows"
        )
        if not has_same_rows:
            return (
                f"has other rows {contrast}. Repeat a batch with the same input and partitions (for files, set "
                "spark.sql.files.minPartitionNum, because Spark splits them by the number of cores)."
            )
        return "" if self._digest.has_headers_of(earlier.digest) else f"has other headers {contrast}."
