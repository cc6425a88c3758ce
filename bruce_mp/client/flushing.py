"""`flush()`: what is asked of the daemon, what it answers, and what a broken connection leaves uncertain.

The daemon counts from a connection's first message on; an `Outcome` counts from the last flush on.
"""

from __future__ import annotations

import os
import select
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from bruce_mp.client.failures import SendError
from bruce_mp.errors import DiscardReason, RemoteProtocolError
from bruce_mp.protocol.barrier_wire import (
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
    from bruce_mp.protocol.barrier_wire import AnswerReader

__all__ = ["FlushError", "Ledger", "LevelName", "Outcome", "Question", "read_answer"]

LevelName = Literal["received", "delivered"]

READ_SIZE: Final = 1 << 16
LONGEST_MS: Final = 2**31 - 1
SHARE_FOR_THE_DAEMON: Final = 0.9
"""Of the time; the rest is for its answer to arrive."""

NOTHING_YET: Final = BarrierAnswer(b"", BarrierStatus.DONE, 0, 0, 0)

_WHY: Final = {
    BarrierStatus.TIMED_OUT: "the time was up. What is left is delivered all the same; flush again to see.",
    BarrierStatus.SHUTTING_DOWN: "the daemon ends. It keeps what is left, and delivers it when it is started again.",
    BarrierStatus.MALFORMED: "the daemon did not understand the question. Are client and daemon of one version?",
    BarrierStatus.UNSUPPORTED_VERSION: "the daemon is too old for this client's question. Update it.",
    BarrierStatus.FENCED: "an attempt is open, and nothing of it is delivered before it ends. Flush behind it.",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the messages since the last flush, or since the connection was made."""

    received: int
    """Messages that reached the daemon."""
    delivered: int
    """Messages that Kafka has acknowledged."""
    discarded: int
    """Messages that the daemon gave up."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """The discarded ones by reason, such as BAD_TOPIC."""


class FlushError(SendError):
    """Not every message has an outcome, as far as we know; each may be delivered or not.

    `outcome` is what the daemon knew when it answered; `None` if it did not.
    """

    reason = "flush"

    def __init__(self, text: str, outcome: Outcome | None = None) -> None:
        super().__init__(text)
        self.outcome = outcome


class Question:
    """One barrier."""

    def __init__(self, level: LevelName, deadline: Deadline) -> None:
        self._token = os.urandom(TOKEN_BYTES)
        self._level = Level[level.upper()]
        left = deadline.left()
        self._limit_ms = LONGEST_MS if left is None else min(int(left * 1000 * SHARE_FOR_THE_DAEMON), LONGEST_MS)

    def encode(self) -> bytes:
        """The bytes of the request."""
        return encode_barrier(self._token, self._level, self._limit_ms)

    def is_answered_by(self, answer: BarrierAnswer) -> bool:
        """Whether the answer is to this one, and not to an earlier one that nobody waits for any more."""
        return answer.token == self._token


def read_answer(
    connection: socket.socket, reader: AnswerReader, question: Question, deadline: Deadline
) -> BarrierAnswer:
    """The answer to a question.  Raises FlushError if the time is up, OSError if the connection ends."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while True:
        if not poll.poll(deadline.poll_ms()):
            raise FlushError("the daemon did not answer in time. What was sent is delivered all the same, if it lives.")
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


class Mark(NamedTuple):
    """Where the ledger stood when a question was asked."""

    connection: int
    written: int


class Ledger:
    """What is known of the messages that were written and not yet flushed; its owner holds a lock."""

    def __init__(self) -> None:
        self._connection = 0
        self._written = 0
        self._lost_sight_of = 0
        self._flushed = NOTHING_YET

    def wrote(self, messages: int) -> None:
        """So many more are on the connection."""
        self._written += messages

    def connection_ended(self) -> None:
        """Nobody will ever tell what became of the messages on it."""
        self._lost_sight_of += self._written
        self._connection += 1
        self._written = 0
        self._flushed = NOTHING_YET

    def mark(self) -> Mark:
        """What a question that is asked now covers.  Raises FlushError if a connection broke since the last flush."""
        if self._lost_sight_of:
            lost, self._lost_sight_of = self._lost_sight_of, 0
            raise FlushError(
                f"the connection broke. {lost} messages were written to it, and nobody knows how many came."
            )
        return Mark(self._connection, self._written)

    def settle(self, mark: Mark, answer: BarrierAnswer) -> Outcome:
        """The outcome that an answer tells.  Raises FlushError if it is not final, or if the connection broke."""
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
