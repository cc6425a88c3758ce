"""Barriers: a client requests the outcome of all messages that it has sent on this stream connection so far.

The answer comes when all these messages have reached the requested `Level`, or when the time limit has passed.

    request  int32 Size | int16 ApiKey = 258 | int16 ApiVersion = 0 | int16 Flags = 0 | 8 bytes Token | int16 Level
             | int32 TimeLimit in ms
    answer   int32 Size | int16 ApiKey = 259 | int16 ApiVersion = 0 | 8 bytes Token | int16 Status | int64 Received
             | int64 Delivered | int64 Discarded | int16 ReasonCount | ReasonCount times: int16 Reason, int64 Count

All integers are big-endian and signed; Size counts the whole frame, itself included.  The counts cover all messages
that came on the connection before the request.  `docs/protocol.md` describes both frames for programmers of clients.
The daemon and the Python client both use this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason, LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ANSWER_KEY",
    "BARRIER_KEY",
    "FRAME_START",
    "MAX_ANSWER_BYTES",
    "MIN_ANSWER_BYTES",
    "NOT_ANSWER",
    "REASON",
    "TOKEN_BYTES",
    "Barrier",
    "BarrierAnswer",
    "BarrierStatus",
    "Level",
    "check_token",
    "decode_answer",
    "decode_barrier",
    "decode_reasons",
    "encode_answer",
    "encode_barrier",
    "encode_reasons",
]

BARRIER_KEY: Final = 258  # the API keys of Dory, the predecessor of this daemon, are 256 and 257 (`messages.ApiKey`)
ANSWER_KEY: Final = 259
API_VERSION: Final = 0
TOKEN_BYTES: Final = 8  # the client chooses a token for each request, and recognizes the answer by it
MAX_LIMIT_MS: Final = 2**31 - 1
"""The largest time limit that fits into its field."""

_REQUEST: Final = Struct(">ihhh8shi")
_ANSWER: Final = Struct(">ihh8shqqqh")
REASON: Final = Struct(">hq")
"""Reason, Count: the number of messages that were discarded for this reason."""
FRAME_START: Final = Struct(">ihh")
"""Size, ApiKey, ApiVersion."""
_TOKEN_OFFSET: Final = 10
"""Offset of the token in a request, in bytes."""
NOT_ANSWER: Final = "The bytes are no answer to a barrier; check that the socket is the daemon's."
MIN_ANSWER_BYTES: Final = _ANSWER.size
MAX_ANSWER_BYTES: Final = _ANSWER.size + REASON.size * (2**15 - 1)


@unique
class Level(IntEnum):
    """The condition that each message must meet before the daemon answers."""

    RECEIVED = 0
    """The daemon has received the message; it may have discarded it."""
    DELIVERED = 1
    """Kafka has acknowledged the message, or the daemon has discarded it."""
    DURABLE = 2
    """As DELIVERED, or the message is in the daemon's journal on the disk."""


@unique
class BarrierStatus(IntEnum):
    """The status of an answer. The counts in an answer are correct, whatever its status is."""

    DONE = 0
    """All messages have reached the requested level."""
    TIMED_OUT = 1
    """Some messages have not reached the level in time; the daemon continues to deliver them."""
    SHUTTING_DOWN = 2
    """Some messages have not reached the level, and the daemon stops; it delivers them after its next start."""
    MALFORMED = 3
    """The request does not follow the protocol."""
    UNSUPPORTED_VERSION = 4
    """The daemon does not support the request's version."""
    FENCED = 5
    """The request came within a fenced attempt, but the daemon sends an attempt's messages only after its end."""
    NO_JOURNAL = 6
    """The request is for a durable outcome, and the daemon keeps no journal."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A request.  The answer repeats `token`.  `limit_ms` is the longest time before the answer."""

    token: bytes
    level: Level
    limit_ms: int


@dataclass(frozen=True, slots=True)
class BarrierAnswer:
    """An answer.  `reasons` has the number of discarded messages by reason; unknown reasons are int."""

    token: bytes
    status: BarrierStatus
    received: int
    delivered: int
    discarded: int
    reasons: Mapping[DiscardReason | int, int] = field(default_factory=dict)

    @property
    def outstanding(self) -> int:
        """The number of messages that are neither delivered nor discarded yet."""
        return self.received - self.delivered - self.discarded


def encode_barrier(token: bytes, level: Level, limit_ms: int) -> bytes:
    """Encode a request; raise LocalProtocolError if the token does not have 8 bytes or `limit_ms` is out of range."""
    check_token(token)
    if not 0 <= limit_ms <= MAX_LIMIT_MS:
        raise LocalProtocolError(f"A barrier cannot wait {limit_ms} ms: give 0 to {MAX_LIMIT_MS}.")
    return _REQUEST.pack(_REQUEST.size, BARRIER_KEY, API_VERSION, 0, token, level, limit_ms)


def check_token(token: bytes) -> None:
    """Raise LocalProtocolError if the token does not have 8 bytes, because `struct` would pad or cut it silently."""
    if len(token) != TOKEN_BYTES:
        raise LocalProtocolError(f"The token of a request has {len(token)} bytes: give {TOKEN_BYTES}.")


def decode_barrier(data: bytes | bytearray | memoryview) -> Barrier | BarrierAnswer:
    """Decode a whole request.

    If the request is malformed or of an unsupported version, return the answer to send, in which the caller must
    set the counts.
    """
    _, _, version = FRAME_START.unpack_from(data)
    # A malformed request may end before or within its token, but the answer needs a token of 8 bytes.
    token = bytes(data[_TOKEN_OFFSET : _TOKEN_OFFSET + TOKEN_BYTES]).ljust(TOKEN_BYTES, b"\0")
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
    """Encode an answer; reasons with the count 0 are left out."""
    reasons = encode_reasons(answer.reasons)
    counts = (answer.received, answer.delivered, answer.discarded, len(reasons) // REASON.size)
    size = _ANSWER.size + len(reasons)
    return _ANSWER.pack(size, ANSWER_KEY, API_VERSION, answer.token, answer.status, *counts) + reasons


def encode_reasons(reasons: Mapping[DiscardReason | int, int]) -> bytes:
    """Encode pairs of reason and count, in the order of the reasons; reasons with the count 0 are left out."""
    return b"".join(REASON.pack(reason, count) for reason, count in sorted(reasons.items()) if count)


def decode_reasons(data: bytes | bytearray | memoryview) -> dict[DiscardReason | int, int]:
    """Decode the result of `encode_reasons`; an unknown reason stays a number."""
    return {
        DiscardReason(reason) if reason in _REASONS else reason: count for reason, count in REASON.iter_unpack(data)
    }


def decode_answer(data: bytes | bytearray | memoryview) -> BarrierAnswer:
    """Decode a whole answer; raise RemoteProtocolError for malformed bytes."""
    if len(data) < _ANSWER.size:
        raise RemoteProtocolError(
            f"An answer to a barrier has only {len(data)} bytes; check that the socket is the daemon's."
        )
    size, key, version, token, status, received, delivered, discarded, reason_count = _ANSWER.unpack_from(data)
    is_complete = size == len(data) == _ANSWER.size + reason_count * REASON.size
    is_valid = is_complete and (key, version) == (ANSWER_KEY, API_VERSION)
    if not is_valid or status not in _STATUSES:
        raise RemoteProtocolError(NOT_ANSWER)
    reasons = decode_reasons(data[_ANSWER.size :])
    return BarrierAnswer(token, BarrierStatus(status), received, delivered, discarded, reasons)


_STATUSES: Final = frozenset(BarrierStatus)
_REASONS: Final = frozenset(DiscardReason)
