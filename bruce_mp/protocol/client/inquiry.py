"""Inquiries: a client asks for the daemon's limits, and for the outcome of a unique attempt.

An attempt is unique if its begin frame has the option `name=unique` (`fence.py`).

    request  int32 Size | int16 ApiKey = 258 | int16 ApiVersion = 1 | int16 Flags = 0 | 8 bytes Token
             | int16 NameSize | Name
    answer   int32 Size | int16 ApiKey = 259 | int16 ApiVersion = 1 | 8 bytes Token | int16 State | int64 Since
             | int32 LargestMessage | int32 LargestPayload | int64 Received | int64 Delivered | int16 ReasonCount
             | int16 FeaturesSize | ReasonCount times: int16 Reason, int64 Count | Features

The request is version 1 of the barrier, because older daemons answer an unknown version of a barrier with a status and
keep the connection open.  All integers are big-endian and signed; Size counts the whole frame, itself included.
`docs/protocol.md` describes both frames for programmers of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, unique
from struct import Struct
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.client.barrier import (
    ANSWER_KEY,
    BARRIER_KEY,
    FRAME_START,
    REASON,
    check_token,
    decode_reasons,
    encode_reasons,
)
from bruce_mp.protocol.client.fence import MAX_NAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bruce_mp.errors import DiscardReason

__all__ = [
    "API_VERSION",
    "AttemptOutcome",
    "Inquiry",
    "InquiryAnswer",
    "decode_inquiry",
    "decode_inquiry_answer",
    "encode_inquiry",
    "encode_inquiry_answer",
    "is_inquiry",
]

API_VERSION: Final = 1
"""The version of a barrier frame that makes it an inquiry."""
_REQUEST: Final = Struct(">ihhh8sh")
_ANSWER: Final = Struct(">ihh8shqiiqqhh")
_NOT_ANSWER: Final = "The bytes are no answer to an inquiry; check that the socket is the daemon's."


@unique
class AttemptOutcome(IntEnum):
    """The outcome of the attempt that an inquiry names, in the field State."""

    NONE = 0
    """The daemon remembers no complete attempt of this name."""
    PENDING = 1
    """It is complete, and some of its messages have no outcome yet."""
    SETTLED = 2
    """Each message is delivered or discarded, as the counts say."""
    UNCOUNTED = 3
    """It is complete, and the daemon has lost the counts: each message is delivered, discarded or held."""
    LOST = 4
    """It was complete, and the slab that held it is gone."""
    UNAVAILABLE = 5
    """The daemon cannot read its memory of attempts; its log has the error."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request; an empty name asks for the limits only.  The answer repeats `token`."""

    token: bytes
    name: bytes


@dataclass(frozen=True, slots=True)
class InquiryAnswer:
    """An answer.  `features` names the abilities of the daemon beyond its protocol's first version.

    The daemon remembers all attempts that were completed from `since_ms` on, in ms since the epoch.
    `largest_message` bounds a whole message in bytes, its size field included; `largest_payload` bounds key, value and
    headers together.
    """

    token: bytes
    outcome: AttemptOutcome
    since_ms: int
    largest_message: int
    largest_payload: int
    received: int = 0
    delivered: int = 0
    reasons: Mapping[DiscardReason | int, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()


def encode_inquiry(token: bytes, name: bytes = b"") -> bytes:
    """Encode a request; raise LocalProtocolError for a name over 255 bytes, or a token of more or less than 8."""
    check_token(token)
    if len(name) > MAX_NAME_BYTES:
        raise LocalProtocolError(f"The name of an attempt has {len(name)} bytes: at most {MAX_NAME_BYTES} fit.")
    return _REQUEST.pack(_REQUEST.size + len(name), BARRIER_KEY, API_VERSION, 0, token, len(name)) + name


def is_inquiry(data: bytes | bytearray | memoryview) -> bool:
    """Return True for a barrier frame with the version of the inquiry."""
    _, key, version = FRAME_START.unpack_from(data)
    return (key, version) == (BARRIER_KEY, API_VERSION)


def decode_inquiry(data: bytes | bytearray | memoryview) -> Inquiry | None:
    """Decode a whole request; return None for a malformed one."""
    if len(data) < _REQUEST.size:
        return None
    size, _, _, flags, token, name_size = _REQUEST.unpack_from(data)
    name = bytes(data[_REQUEST.size :])
    is_valid = size == len(data) and not flags and name_size == len(name) <= MAX_NAME_BYTES
    return Inquiry(token, name) if is_valid else None


def encode_inquiry_answer(answer: InquiryAnswer) -> bytes:
    """Encode an answer; the reasons and the features follow the fields of fixed size."""
    reasons = encode_reasons(answer.reasons)
    features = " ".join(sorted(answer.features)).encode()
    tail = reasons + features
    since_and_limits = (answer.since_ms, answer.largest_message, answer.largest_payload)
    counts = (answer.received, answer.delivered, len(reasons) // REASON.size, len(features))
    head = (_ANSWER.size + len(tail), ANSWER_KEY, API_VERSION, answer.token, answer.outcome)
    return _ANSWER.pack(*head, *since_and_limits, *counts) + tail


def decode_inquiry_answer(data: bytes | bytearray | memoryview) -> InquiryAnswer:
    """Decode a whole answer; raise RemoteProtocolError for malformed bytes."""
    if len(data) < _ANSWER.size:
        raise RemoteProtocolError(_NOT_ANSWER)
    size, key, version, token, outcome, since_ms, message, payload, received, delivered, reason_count, features_size = (
        _ANSWER.unpack_from(data)
    )
    reasons_end = _ANSWER.size + reason_count * REASON.size
    has_all = min(reason_count, features_size) >= 0 and size == len(data) == reasons_end + features_size
    is_valid = has_all and (key, version) == (ANSWER_KEY, API_VERSION)
    if not is_valid or outcome not in _OUTCOMES:
        raise RemoteProtocolError(_NOT_ANSWER)
    reasons = decode_reasons(data[_ANSWER.size : reasons_end])
    features = frozenset(bytes(data[reasons_end:]).decode("utf-8", "replace").split())
    return InquiryAnswer(
        token, AttemptOutcome(outcome), since_ms, message, payload, received, delivered, reasons, features
    )


_OUTCOMES: Final = frozenset(AttemptOutcome)
