"""`flush()`: the barrier request, the daemon's answer, and the messages that a broken connection leaves uncertain.

The daemon counts from the first message of a connection; an `Outcome` counts from the last flush.
"""

from __future__ import annotations

import os
import select
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from bruce_mp.client.errors import SendError
from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.protocol.client.barrier import (
    TOKEN_BYTES,
    BarrierAnswer,
    BarrierStatus,
    Level,
    encode_barrier,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from bruce_mp.client.deadline import Deadline
    from bruce_mp.protocol.client.barrier import AnswerReader

__all__ = ["FlushError", "FlushLedger", "FlushRequest", "LevelName", "Outcome", "read_answer"]

LevelName = Literal["received", "delivered"]

READ_SIZE: Final = 1 << 16
LONGEST_MS: Final = 2**31 - 1
SHARE_FOR_THE_DAEMON: Final = 0.9
"""Share of the time limit for the daemon; the rest is for the transfer of its answer."""

NOTHING_YET: Final = BarrierAnswer(b"", BarrierStatus.DONE, 0, 0, 0)

_WHY: Final = {
    BarrierStatus.TIMED_OUT: "the time limit passed. The daemon still delivers the rest; flush again for the outcome.",
    BarrierStatus.SHUTTING_DOWN: "the daemon is shutting down. It keeps the rest, and delivers it after a restart.",
    BarrierStatus.MALFORMED: "the daemon did not understand the request. Are client and daemon of one version?",
    BarrierStatus.UNSUPPORTED_VERSION: "the daemon is too old for this client's request. Update it.",
    BarrierStatus.FENCED: "an attempt is open, and none of it is delivered before it ends. Flush after it.",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of the messages since the last flush or since the connection was made."""

    received: int
    """Messages that reached the daemon."""
    delivered: int
    """Messages that Kafka acknowledged."""
    discarded: int
    """Messages that the daemon discarded."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Discarded messages by reason, such as BAD_TOPIC."""


class FlushError(SendError):
    """Some messages have no known outcome; each of them may be delivered or not.

    `outcome` holds the daemon's counts from its answer; `None` without an answer.
    """

    reason = "flush"

    def __init__(self, text: str, outcome: Outcome | None = None) -> None:
        super().__init__(text)
        self.outcome = outcome


class FlushRequest:
    def __init__(self, level: LevelName, deadline: Deadline) -> None:
        self._token = os.urandom(TOKEN_BYTES)
        self._level = Level[level.upper()]
        left = deadline.left()
        self._limit_ms = LONGEST_MS if left is None else min(int(left * 1000 * SHARE_FOR_THE_DAEMON), LONGEST_MS)

    def encode(self) -> bytes:
        """Return the bytes of the barrier request."""
        return encode_barrier(self._token, self._level, self._limit_ms)

    def is_answered_by(self, answer: BarrierAnswer) -> bool:
        """Return True if the answer has this request's token.

        Answers to earlier, abandoned requests may still arrive.
        """
        return answer.token == self._token


def read_answer(
    connection: socket.socket, reader: AnswerReader, question: FlushRequest, deadline: Deadline
) -> BarrierAnswer:
    """Read the answer to a request. Raise FlushError on timeout, OSError if the connection ends."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        if not poll.poll(deadline.poll_ms()):
            raise FlushError("the daemon did not answer in time. If it runs, it still delivers the messages.")
        data = connection.recv(READ_SIZE)
        if not data:
            raise ConnectionResetError
        for answer in _feed(reader, data):
            if question.is_answered_by(answer):
                return answer


def _feed(reader: AnswerReader, data: bytes) -> list[BarrierAnswer]:
    try:
        return reader.feed(data)
    except RemoteProtocolError as error:
        raise FlushError(str(error)) from error


class FlushMark(NamedTuple):
    """State of the ledger at the time of a flush request."""

    connection: int
    written: int


class FlushLedger:
    """Account of the messages written since the last flush; its owner holds a lock."""

    def __init__(self) -> None:
        self._connection = 0
        self._written = 0
        self._lost_sight_of = 0
        self._flushed = NOTHING_YET

    def wrote(self, messages: int) -> None:
        """Add messages written to the connection."""
        self._written += messages

    def connection_ended(self) -> None:
        """Mark all messages of the connection as uncertain: no later connection reports their outcome."""
        self._lost_sight_of += self._written
        self._connection += 1
        self._written = 0
        self._flushed = NOTHING_YET

    def mark(self) -> FlushMark:
        """Return the state that a request sent now covers.

        Raise FlushError if a connection broke since the last flush.
        """
        if self._lost_sight_of:
            lost, self._lost_sight_of = self._lost_sight_of, 0
            raise FlushError(f"the connection broke. Of the {lost} messages written to it, an unknown number arrived.")
        return FlushMark(self._connection, self._written)

    def settle(self, mark: FlushMark, answer: BarrierAnswer) -> Outcome:
        """Return the outcome that an answer reports.

        Raise FlushError if the answer is not final, or if the connection broke.
        """
        if mark.connection != self._connection:
            self.mark()
        outcome = _difference(answer, self._flushed)
        if answer.status is not BarrierStatus.DONE:
            raise FlushError(_WHY[answer.status], outcome)
        self._flushed = answer
        self._written -= mark.written
        return outcome


def _difference(now: BarrierAnswer, before: BarrierAnswer) -> Outcome:
    reasons = {_name(reason): count - before.reasons.get(reason, 0) for reason, count in now.reasons.items()}
    return Outcome(
        now.received - before.received,
        now.delivered - before.delivered,
        now.discarded - before.discarded,
        {name: count for name, count in reasons.items() if count},
    )


def _name(reason: DiscardReason | int) -> str:
    return reason.name if isinstance(reason, DiscardReason) else f"REASON_{reason}"
