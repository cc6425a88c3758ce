"""`flush()`: the barrier request, the daemon's answer, and the messages with an unknown outcome.

A barrier is a request for the outcome of all earlier messages of the connection. The daemon's answer has counts of all
messages of the connection, but an `Outcome` has counts of the messages since the last flush. If the connection breaks,
the outcome of the messages since the last flush is unknown. A later flush of a stronger level also counts those that an
earlier flush confirmed only at a weaker one.
"""

from __future__ import annotations

import os
import select
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from bruce_mp.client.errors import SendError
from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.protocol.client.barrier import TOKEN_BYTES, BarrierAnswer, BarrierStatus, Level, encode_barrier

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from bruce_mp.client.deadline import Deadline
    from bruce_mp.protocol.client.answer_reader import AnswerReader

__all__ = ["FlushError", "FlushRequest", "LevelName", "Outcome", "UnflushedMessages", "read_answer"]

LevelName = Literal["received", "delivered", "durable"]

READ_SIZE: Final = 1 << 16
MAX_LIMIT_MS: Final = 2**31 - 1
"""The largest time limit that fits into a barrier; a flush without a limit uses it."""
DAEMON_FRACTION: Final = 0.9
"""The daemon's time limit for an answer, as a fraction of the flush's; the rest is for the transfer of the answer."""

_CONFIRMED_LEVELS: Final = {
    Level.RECEIVED: (Level.RECEIVED,),
    Level.DURABLE: (Level.RECEIVED, Level.DURABLE),
    Level.DELIVERED: tuple(Level),
}
"""The levels that each message has reached after a successful flush, by the flush's level."""

ZERO_COUNTS: Final = BarrierAnswer(b"", BarrierStatus.DONE, received=0, delivered=0, discarded=0)

_STATUS_TEXTS: Final = {
    BarrierStatus.TIMED_OUT: "the time limit passed. The daemon still delivers the rest; flush again for the outcome.",
    BarrierStatus.SHUTTING_DOWN: "the daemon is shutting down. It keeps the rest, and delivers it after a restart.",
    BarrierStatus.MALFORMED: "the daemon could not parse the request. Use a client and a daemon of the same version.",
    BarrierStatus.UNSUPPORTED_VERSION: "the daemon is too old for this client's request. Update it.",
    BarrierStatus.FENCED: "an attempt is open, and the daemon delivers its messages after its end. Flush after it.",
    BarrierStatus.NO_JOURNAL: "the daemon keeps no journal. Set slab.sync to interval or each flush, and restart it.",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of the messages since the last flush, or since the connection was opened, whichever is later."""

    received: int
    """Number of messages that reached the daemon."""
    delivered: int
    """Number of messages that Kafka acknowledged."""
    discarded: int
    """Number of messages that the daemon discarded."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Number of discarded messages by reason, such as BAD_TOPIC."""


class FlushError(SendError):
    """Some messages have no known outcome; each of them may be delivered or not.

    `outcome` has the counts that the daemon answered; it is None if no answer came.
    """

    reason = "flush"

    def __init__(self, text: str, outcome: Outcome | None = None) -> None:
        super().__init__(text)
        self.outcome = outcome


class FlushRequest:
    """The barrier of one flush. Its answer repeats the random `token`; `frame` is the encoded barrier."""

    def __init__(self, level: LevelName, deadline: Deadline, lost_before: Counter[Level]) -> None:
        """`lost_before` is the `UnflushedMessages.lost_counts` of the call to `flush()`."""
        remaining_s = deadline.remaining_s()
        limit_ms = MAX_LIMIT_MS
        if remaining_s is not None:
            limit_ms = int(min(remaining_s * 1000 * DAEMON_FRACTION, MAX_LIMIT_MS))
        self.level = Level[level.upper()]
        self.lost_before = lost_before
        self.token = os.urandom(TOKEN_BYTES)
        self.frame = encode_barrier(self.token, self.level, limit_ms)


def read_answer(
    connection: socket.socket, reader: AnswerReader, request: FlushRequest, deadline: Deadline
) -> BarrierAnswer:
    """Read the answer to a request. Raise FlushError if none comes in time, OSError if the connection ends."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        while not poll.poll(deadline.poll_ms()):
            if deadline.has_passed():
                raise FlushError("the daemon did not answer in time. If it runs, it still delivers the messages.")
        data = connection.recv(READ_SIZE)
        if not data:
            raise ConnectionResetError
        for answer in _barrier_answers(reader, data):
            if answer.token == request.token:  # answers to earlier, abandoned requests may still arrive
                return answer


def _barrier_answers(reader: AnswerReader, data: bytes) -> list[BarrierAnswer]:
    try:
        return [answer for answer in reader.feed(data) if isinstance(answer, BarrierAnswer)]
    except RemoteProtocolError as error:
        raise FlushError(str(error)) from error


class FlushMark(NamedTuple):
    """The state of `UnflushedMessages` when a flush request was sent."""

    ended_connection_count: int
    """Number of connections that had ended before; it identifies the connection of the request."""
    level: Level
    lost_counts: Counter[Level]
    written_count: int
    """Number of messages written to the connection."""
    flushed_counts: BarrierAnswer
    """The daemon's answer to the previous flush of the connection."""


class UnflushedMessages:
    """The number of written messages that no flush has confirmed, and their outcome. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant for `resolve`
        self._count_after_write = 0
        """Value of `_written_count` if the present write completes all messages of the buffer."""
        self._ended_connection_count = 0
        self._written_count = 0
        """Number of messages written to the connection."""
        self._confirmed_counts: Counter[Level] = Counter()
        """Number of these that have reached each level, as flushes confirmed."""
        self.lost_counts: Counter[Level] = Counter()
        """Number of unconfirmed messages of broken connections by level; a break replaces the object."""
        self._uncertain_counts: Counter[Level] = Counter()
        """Number of these that no FlushError has reported."""
        self._flushed_counts = ZERO_COUNTS
        """The daemon's answer to the last flush of the connection."""

    def on_write(self, message_count: int) -> None:
        """Note the number of messages in the buffer before a write."""
        self._count_after_write = self._written_count + message_count

    def on_written(self, message_count: int) -> None:
        self._written_count += message_count

    def on_write_lost(self) -> int:
        """Count all messages of the last write, and of its connection, as uncertain; return those not counted yet."""
        count = max(self._count_after_write - self._written_count, 0)
        self.on_written(count)
        self.on_connection_ended()
        return count

    def on_connection_ended(self) -> None:
        """Count the unconfirmed messages of the connection as uncertain: no later connection reports their outcome."""
        with self._lock:
            lost = Counter({level: self._written_count - self._confirmed_counts[level] for level in Level})
            self.lost_counts = self.lost_counts + lost
            self._uncertain_counts += lost
            self._ended_connection_count += 1
            self._written_count = 0
            self._confirmed_counts.clear()
            self._flushed_counts = ZERO_COUNTS

    def mark(self, level: Level, lost_before: Counter[Level]) -> FlushMark:
        """Return the mark for a request that is sent now; first call `raise_if_uncertain`."""
        self.raise_if_uncertain(level, lost_before)
        return FlushMark(
            self._ended_connection_count, level, self.lost_counts, self._written_count, self._flushed_counts
        )

    def raise_if_uncertain(self, level: Level, lost_before: Counter[Level]) -> None:
        """Raise FlushError if a connection broke whose messages had not reached the level.

        `lost_before` is the `lost_counts` at the start of the flush: an earlier break counts until an error reports it.
        """
        with self._lock:
            unreported = self._uncertain_counts[level]
            self._uncertain_counts -= Counter(dict.fromkeys(Level, unreported))  # a stronger level may keep others
            uncertain = max(unreported, self.lost_counts[level] - lost_before[level])
        if uncertain:
            raise FlushError(
                f"the connection broke. Of the {uncertain} messages written to it, an unknown number arrived."
            )

    def resolve(self, mark: FlushMark, answer: BarrierAnswer) -> Outcome:
        """Return the outcome of the messages that `mark` covers, from the answer to its request.

        Raise FlushError if messages have no outcome yet, or if a connection with unconfirmed messages broke.
        """
        with self._lock:
            is_current = mark.ended_connection_count == self._ended_connection_count
            if not is_current:
                self.raise_if_uncertain(mark.level, mark.lost_counts)
            outcome = _difference(answer, mark.flushed_counts)
            if answer.status is not BarrierStatus.DONE:
                raise FlushError(_STATUS_TEXTS[answer.status], outcome)
            if is_current:  # the counts of a later connection do not include these messages
                self._flushed_counts = answer
                for level in _CONFIRMED_LEVELS[mark.level]:
                    self._confirmed_counts[level] = mark.written_count
            return outcome


def _difference(later: BarrierAnswer, earlier: BarrierAnswer) -> Outcome:
    """Return the counts of an answer minus those of an earlier answer on the same connection."""
    reasons = {_reason_name(reason): count - earlier.reasons.get(reason, 0) for reason, count in later.reasons.items()}
    return Outcome(
        later.received - earlier.received,
        later.delivered - earlier.delivered,
        later.discarded - earlier.discarded,
        {name: count for name, count in reasons.items() if count},
    )


def _reason_name(reason: DiscardReason | int) -> str:
    return reason.name if isinstance(reason, DiscardReason) else f"REASON_{reason}"
