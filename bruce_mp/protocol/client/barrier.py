"""Barriers: a client requests the outcome of all messages that it sent before on a stream connection.

    request  int32 Size | int16 ApiKey = 258 | int16 ApiVersion = 0 | int16 Flags = 0 | 8 bytes Token | int16 Level
             | int32 TimeLimit in ms
    answer   int32 Size | int16 ApiKey = 259 | int16 ApiVersion = 0 | 8 bytes Token | int16 Status | int64 Received
             | int64 Delivered | int64 Discarded | int16 number of reasons | as often: int16 Reason, int64 Count

All integers are big-endian and signed; Size counts the whole frame, itself included.  The counts cover all messages
that came on the connection before the request.  `docs/protocol.md` describes both frames for programmers of clients.
The daemon and the Python client both use this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import AttemptEndedError, DiscardReason, LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.client.fence import ENDED_KEY, decode_ended
from bruce_mp.protocol.client.inquiry import API_VERSION as INQUIRY_VERSION
from bruce_mp.protocol.client.inquiry import InquiryAnswer, decode_inquiry_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ANSWER_KEY",
    "BARRIER_KEY",
    "TOKEN_BYTES",
    "AnswerReader",
    "Barrier",
    "BarrierAnswer",
    "BarrierStatus",
    "Level",
    "decode_answer",
    "decode_barrier",
    "encode_answer",
    "encode_barrier",
]

BARRIER_KEY: Final = 258  # API keys of our frames continue Dory's 256 and 257 (`messages.ApiKey`)
ANSWER_KEY: Final = 259
API_VERSION: Final = 0
TOKEN_BYTES: Final = 8  # chosen by the client, to tell its answers apart
MAX_LIMIT_MS: Final = 2**31 - 1
"""The largest 32-bit number of the frame's field."""

_REQUEST: Final = Struct(">ihhh8shi")
_ANSWER: Final = Struct(">ihh8shqqqh")
_REASON: Final = Struct(">hq")
_HEADER: Final = Struct(">ihh")
_TOKEN_AT: Final = 10
_NOT_ANSWER: Final = "The bytes are no answer to a barrier; check that the socket is the daemon's."
_MAX_ANSWER_BYTES: Final = _ANSWER.size + _REASON.size * (2**15 - 1)


@unique
class Level(IntEnum):
    """The stage that the messages must reach before the answer."""

    RECEIVED = 0
    """The daemon has them, or has discarded them."""
    DELIVERED = 1
    """Each one is acknowledged by Kafka or discarded."""
    DURABLE = 2
    """Each one is in the daemon's journal on the disk, acknowledged by Kafka, or discarded."""


@unique
class BarrierStatus(IntEnum):
    """The status of an answer; the counts are right with each of them."""

    DONE = 0
    """All messages have reached the requested level."""
    TIMED_OUT = 1
    """Not all messages have reached it; the daemon still delivers the others."""
    SHUTTING_DOWN = 2
    """Not all messages have reached it, and the daemon stops; it keeps the others for its next start."""
    MALFORMED = 3
    """The request does not follow the protocol."""
    UNSUPPORTED_VERSION = 4
    """The daemon does not support the request's version."""
    FENCED = 5
    """The request is inside a fenced attempt, whose messages stay until its end."""
    NO_JOURNAL = 6
    """The request is for a durable outcome, and the daemon keeps no journal."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A request.  The answer repeats the client's `token`; `limit_ms` is the longest wait."""

    token: bytes
    level: Level
    limit_ms: int


@dataclass(frozen=True, slots=True)
class BarrierAnswer:
    """An answer.  An unknown reason is represented by its number."""

    token: bytes
    status: BarrierStatus
    received: int
    delivered: int
    discarded: int
    reasons: Mapping[DiscardReason | int, int] = field(default_factory=dict)

    @property
    def outstanding(self) -> int:
        """Messages without a final outcome."""
        return self.received - self.delivered - self.discarded


def encode_barrier(token: bytes, level: Level, limit_ms: int) -> bytes:
    """Encode a request; raise LocalProtocolError for a token of other than 8 bytes or a time out of range."""
    if len(token) != TOKEN_BYTES:
        raise LocalProtocolError(f"The token of a barrier has {len(token)} bytes: give {TOKEN_BYTES}.")
    if not 0 <= limit_ms <= MAX_LIMIT_MS:
        raise LocalProtocolError(f"A barrier cannot wait {limit_ms} ms: give 0 to {MAX_LIMIT_MS}.")
    return _REQUEST.pack(_REQUEST.size, BARRIER_KEY, API_VERSION, 0, token, level, limit_ms)


def decode_barrier(data: bytes | bytearray | memoryview) -> Barrier | BarrierAnswer:
    """Decode a whole request; for a malformed or unsupported one, return the answer, without counts."""
    _, _, version = _HEADER.unpack_from(data)
    token = bytes(data[_TOKEN_AT : _TOKEN_AT + TOKEN_BYTES]).ljust(TOKEN_BYTES, b"\0")
    if version != API_VERSION:
        return BarrierAnswer(token, BarrierStatus.UNSUPPORTED_VERSION, 0, 0, 0)
    if len(data) != _REQUEST.size:
        return BarrierAnswer(token, BarrierStatus.MALFORMED, 0, 0, 0)
    _, _, _, flags, token, level, limit_ms = _REQUEST.unpack(data)
    if flags or level not in _LEVELS or limit_ms < 0:
        return BarrierAnswer(token, BarrierStatus.MALFORMED, 0, 0, 0)
    return Barrier(token, Level(level), limit_ms)


_LEVELS: Final = frozenset(Level)


def encode_answer(answer: BarrierAnswer) -> bytes:
    """Encode an answer, without the reasons that have no messages."""
    reasons = [_REASON.pack(reason, count) for reason, count in sorted(answer.reasons.items()) if count]
    size = _ANSWER.size + len(reasons) * _REASON.size
    counts = (answer.received, answer.delivered, answer.discarded, len(reasons))
    return _ANSWER.pack(size, ANSWER_KEY, API_VERSION, answer.token, answer.status, *counts) + b"".join(reasons)


def decode_answer(data: bytes | bytearray | memoryview) -> BarrierAnswer:
    """Decode a whole answer; raise RemoteProtocolError for malformed bytes."""
    if len(data) < _ANSWER.size:
        raise RemoteProtocolError(
            f"An answer to a barrier has only {len(data)} bytes; check that the socket is the daemon's."
        )
    size, key, version, token, status, received, delivered, discarded, count = _ANSWER.unpack_from(data)
    is_valid = size == len(data) == _ANSWER.size + count * _REASON.size and (key, version) == (ANSWER_KEY, API_VERSION)
    if not is_valid or status not in _STATUSES:
        raise RemoteProtocolError(_NOT_ANSWER)
    reasons = {
        DiscardReason(reason) if reason in _REASONS else reason: number
        for reason, number in _REASON.iter_unpack(data[_ANSWER.size :])
    }
    return BarrierAnswer(token, BarrierStatus(status), received, delivered, discarded, reasons)


_STATUSES: Final = frozenset(BarrierStatus)
_REASONS: Final = frozenset(DiscardReason)


class AnswerReader:
    """Splits the bytes that a client receives into answers."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> list[BarrierAnswer | InquiryAnswer]:
        """Return the answers that `data` completes.

        Raise RemoteProtocolError for malformed bytes, and AttemptEndedError if the daemon ended an open attempt.
        """
        self._unread += data
        answers: list[BarrierAnswer | InquiryAnswer] = []
        while len(self._unread) >= _HEADER.size:
            size, key, version = _HEADER.unpack_from(self._unread)
            if key == ENDED_KEY and _HEADER.size <= size <= len(self._unread):
                raise AttemptEndedError(decode_ended(self._unread[:size])[1])
            if key == ENDED_KEY:
                break
            if key != ANSWER_KEY or not _ANSWER.size <= size <= _MAX_ANSWER_BYTES:
                raise RemoteProtocolError(_NOT_ANSWER)
            if len(self._unread) < size:
                break
            decode = decode_inquiry_answer if version == INQUIRY_VERSION else decode_answer
            answers.append(decode(bytes(self._unread[:size])))
            del self._unread[:size]
        return answers
