"""Inquiries: a client asks for the daemon's limits, and for the outcome of a unique attempt.

An attempt (`fence.py`) is unique if its begin frame has the option `name=unique`.

    request  int32 Size | int16 ApiKey = 258 | int16 ApiVersion = 1 | int16 Flags = 0 | 8 bytes Token
             | int16 NameSize | Name
    answer   int32 Size | int16 ApiKey = 259 | int16 ApiVersion = 1 | 8 bytes Token | int16 State | int64 Since
             | int32 LargestMessage | int32 LargestPayload | int64 Received | int64 Delivered | int16 ReasonCount
             | int16 FeaturesSize | ReasonCount times: int16 Reason, int64 Count | Features

The request has the API key of a barrier, with version 1, because an older daemon answers an unknown version of a
barrier with the status UNSUPPORTED_VERSION, but closes the connection at an unknown API key.

All integers are big-endian and signed; Size counts the whole frame, itself included.
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
"""The version of a frame with the API key of a barrier that makes the frame an inquiry."""
_REQUEST: Final = Struct(">ihhh8sh")
_ANSWER: Final = Struct(">ihh8shqiiqqhh")
_NOT_ANSWER: Final = "The bytes are no answer to an inquiry; check that the socket is the daemon's."


@unique
class AttemptOutcome(IntEnum):
    """The outcome of the attempt that an inquiry names; the answer has it in the field State."""

    NONE = 0
    """The daemon remembers no complete attempt with this name."""
    PENDING = 1
    """The attempt is complete, and some of its messages are neither delivered nor discarded yet."""
    SETTLED = 2
    """Each message of the attempt is delivered or discarded; the counts tell how many."""
    UNCOUNTED = 3
    """The attempt is complete, but the daemon has lost the counts: a message may be delivered, discarded or neither."""
    LOST = 4
    """The attempt was complete, but the slab that held its messages no longer exists."""
    UNAVAILABLE = 5
    """The daemon cannot read its registry of attempts; the daemon's log has the error."""


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A request for the limits and, unless `name` is empty, that attempt's outcome.  The answer repeats `token`."""

    token: bytes
    name: bytes


@dataclass(frozen=True, slots=True)
class InquiryAnswer:
    """An answer.

    The daemon remembers all attempts that were completed at `since_ms` (ms since the epoch) or later. The limits are in
    bytes: `largest_message` for a whole message, its size field included, and `largest_payload` for key, value and
    headers together. The other numbers count the attempt's messages; `reasons` has the number of discarded ones by
    reason. `features` has the names of the protocol's extensions that the daemon supports.
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
    """Encode a request; raise LocalProtocolError if the name has more than 255 bytes, or the token not 8 bytes."""
    check_token(token)
    if len(name) > MAX_NAME_BYTES:
        raise LocalProtocolError(f"The name of an attempt has {len(name)} bytes: at most {MAX_NAME_BYTES} fit.")
    return _REQUEST.pack(_REQUEST.size + len(name), BARRIER_KEY, API_VERSION, 0, token, len(name)) + name


def is_inquiry(data: bytes | bytearray | memoryview) -> bool:
    """Return True if a frame has the API key of a barrier and the version of an inquiry."""
    _, key, version = FRAME_START.unpack_from(data)
    return (key, version) == (BARRIER_KEY, API_VERSION)


def decode_inquiry(data: bytes | bytearray | memoryview) -> Inquiry | None:
    """Decode a whole request; return None if it is malformed."""
    if len(data) < _REQUEST.size:
        return None
    size, _, _, flags, token, name_size = _REQUEST.unpack_from(data)
    name = bytes(data[_REQUEST.size :])
    is_valid = size == len(data) and not flags and name_size == len(name) <= MAX_NAME_BYTES
    return Inquiry(token, name) if is_valid else None


def encode_inquiry_answer(answer: InquiryAnswer) -> bytes:
    """Encode an answer."""
    reasons = encode_reasons(answer.reasons)
    features = " ".join(sorted(answer.features)).encode()
    tail = reasons + features
    since_and_limits = (answer.since_ms, answer.largest_message, answer.largest_payload)
    counts_and_sizes = (answer.received, answer.delivered, len(reasons) // REASON.size, len(features))
    head = (_ANSWER.size + len(tail), ANSWER_KEY, API_VERSION, answer.token, answer.outcome)
    return _ANSWER.pack(*head, *since_and_limits, *counts_and_sizes) + tail


def decode_inquiry_answer(data: bytes | bytearray | memoryview) -> InquiryAnswer:
    """Decode a whole answer; raise RemoteProtocolError for malformed bytes."""
    if len(data) < _ANSWER.size:
        raise RemoteProtocolError(_NOT_ANSWER)
    size, key, version, token, outcome, since_ms, message, payload, received, delivered, reason_count, features_size = (
        _ANSWER.unpack_from(data)
    )
    reasons_end = _ANSWER.size + reason_count * REASON.size
    is_complete = min(reason_count, features_size) >= 0 and size == len(data) == reasons_end + features_size
    is_valid = is_complete and (key, version) == (ANSWER_KEY, API_VERSION)
    if not is_valid or outcome not in _OUTCOMES:
        raise RemoteProtocolError(_NOT_ANSWER)
    reasons = decode_reasons(data[_ANSWER.size : reasons_end])
    features = frozenset(bytes(data[reasons_end:]).decode("utf-8", "replace").split())
    return InquiryAnswer(
        token, AttemptOutcome(outcome), since_ms, message, payload, received, delivered, reasons, features
    )


_OUTCOMES: Final = frozenset(AttemptOutcome)
