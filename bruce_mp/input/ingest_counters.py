"""The counters that a batch of an input raises, and the reports of its discarded messages."""

from __future__ import annotations

from collections import Counter as Tally  # `Counter` is the enum of telemetry
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import Failure
from bruce_mp.protocol.client.messages import ApiKey, Message, parse_message
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bruce_mp.discards.reporter import DiscardReporter, PeerCredentials
    from bruce_mp.kernels import Ingested, NoRoom, RejectedMessage

__all__ = [
    "REFUSED_COUNTERS",
    "increments_of_batch",
    "processed_counter",
    "report_no_room",
    "report_refused",
    "report_rejected",
    "unappended_count",
]

_ANY_PARTITION: Final = int(ApiKey.ANY_PARTITION)
_PARTITION_KEY: Final = int(ApiKey.PARTITION_KEY)
_REJECTED_COUNTERS: Final[Mapping[Failure, Counter]] = {
    Failure.MALFORMED: Counter.InputAgentDiscardMsgMalformed,
    Failure.UNSUPPORTED_API_KEY: Counter.InputAgentDiscardMsgUnsupportedApiKey,
}
_BAD_VERSION_COUNTERS: Final[Mapping[int, Counter]] = {
    _ANY_PARTITION: Counter.InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion,
    _PARTITION_KEY: Counter.InputAgentDiscardPartitionKeyMsgUnsupportedApiVersion,
}
REFUSED_COUNTERS: Final[Mapping[DiscardReason, Counter]] = {
    DiscardReason.SENDER_NOT_ALLOWED: Counter.InputAgentDiscardMsgNotAllowed,
    DiscardReason.OVER_QUOTA: Counter.InputAgentDiscardMsgOverQuota,
}
"""The counters of messages that are refused because of their senders, by discard reason."""
_NO_ROOM_COUNTERS: Final[Mapping[DiscardReason, Counter]] = {
    DiscardReason.NO_MEM: Counter.InputAgentDiscardMsgNoMem,
    DiscardReason.TOPIC_OVER_SHARE: Counter.InputAgentDiscardMsgTopicOverShare,
}
_PROCESSED_COUNTERS: Final[Mapping[int, Counter]] = {
    _ANY_PARTITION: Counter.InputAgentProcessAnyPartitionMsg,
    _PARTITION_KEY: Counter.InputAgentProcessPartitionKeyMsg,
}
"""The counter of parsed messages with each API key; it includes rejected messages and those without room."""


def processed_counter(message: memoryview) -> Counter:
    """Return the counter in `_PROCESSED_COUNTERS` that counts this message."""
    return _PROCESSED_COUNTERS[int.from_bytes(message[4:6], "big")]  # the API key follows the 4 bytes of the field Size


def unappended_count(ingested: Ingested) -> int:
    """Return the number of messages of a batch that are in no lane: they were rejected, or found no room."""
    return len(ingested.rejections) + len(ingested.no_room)


def report_rejected(
    reporter: DiscardReporter,
    rejection: RejectedMessage,
    buffer: memoryview,
    extent: tuple[int, int],
    peer: PeerCredentials | None = None,
) -> None:
    """Report the discard of an invalid message; `extent` is its offset in `buffer` and its length."""
    version = rejection.version if rejection.failure is Failure.UNSUPPORTED_VERSION else None
    api_key = rejection.api_key if rejection.failure is Failure.UNSUPPORTED_API_KEY else None
    sample = _sample(reporter, buffer, extent)
    reporter.record(DiscardReason(rejection.failure), sample=sample, version=version, api_key=api_key, peer=peer)


def _sample(reporter: DiscardReporter, buffer: memoryview, extent: tuple[int, int]) -> bytes:
    """Return the beginning of a message, at most `reporter.sample_size` bytes."""
    offset, length = extent
    return bytes(buffer[offset : offset + length][: reporter.sample_size])


def report_refused(
    reporter: DiscardReporter,
    reason: DiscardReason,
    peer: PeerCredentials | None,
    buffer: memoryview,
    extent: tuple[int, int],
) -> None:
    """Report the discard of a message because of its sender; `reason` is a key of `REFUSED_COUNTERS`."""
    if reason is DiscardReason.OVER_QUOTA:
        offset, length = extent
        _report_over_quota(reporter, peer, bytes(buffer[offset : offset + length]))
    else:
        reporter.record(reason, sample=_sample(reporter, buffer, extent), peer=peer)


def _report_over_quota(reporter: DiscardReporter, peer: PeerCredentials | None, data: bytes) -> None:
    """Report a message over the quota of its sender; the message was not parsed before, so it may be malformed."""
    message = parse_message(data)
    if not isinstance(message, Message):
        message = Message(topic=b"", value=data, key=b"", timestamp_ms=0, partition_key=None)
    reporter.record(DiscardReason.OVER_QUOTA, message.topic, message.timestamp_ms, peer=peer)
    if reporter.keeps_copies:
        reporter.copy(DiscardReason.OVER_QUOTA, [_truncate(message, reporter.copy_size)])


def report_no_room(
    reporter: DiscardReporter, dropped: NoRoom, buffer: memoryview, extent: tuple[int, int], reason: DiscardReason
) -> None:
    """Report the discard of a valid message that found no room; `reason` may differ from `dropped.reason`."""
    reporter.record(reason, topic=dropped.topic, timestamp=dropped.timestamp)
    if reporter.keeps_copies:
        offset, length = extent
        message = parse_message(buffer[offset : offset + length])
        assert isinstance(message, Message)  # else it would have been rejected
        reporter.copy(reason, [_truncate(message, reporter.copy_size)])


def _truncate(message: Message, size: int | None) -> Message:
    headers = message.headers if size is None else ()  # a truncated copy has no headers
    return replace(message, key=message.key[:size], value=message.value[:size], headers=headers)


def increments_of_batch(received: int, ingested: Ingested, no_room_reasons: Iterable[DiscardReason]) -> Tally[int]:
    """Return the amount by which a batch of `received` messages raises each counter that all kinds of inputs have.

    `no_room_reasons` has the discard reason of each message that found no room.
    """
    increments: Tally[int] = Tally({Counter.MsgReceived: received})
    increments[_PROCESSED_COUNTERS[_ANY_PARTITION]] = ingested.any_partition_count
    increments[_PROCESSED_COUNTERS[_PARTITION_KEY]] = ingested.partition_key_count
    _add_rejected(increments, ingested.rejections)
    _add_no_room(increments, no_room_reasons)
    return increments


def _add_rejected(increments: Tally[int], rejections: list[RejectedMessage]) -> None:
    for rejection in rejections:
        increments[discarded(DiscardReason(rejection.failure))] += 1
        # UNSUPPORTED_VERSION, the only failure that `_REJECTED_COUNTERS` lacks, has a counter for each API key.
        increments[_REJECTED_COUNTERS.get(rejection.failure) or _BAD_VERSION_COUNTERS[rejection.api_key]] += 1
        if rejection.api_key in _PROCESSED_COUNTERS:
            increments[_PROCESSED_COUNTERS[rejection.api_key]] += 1


def _add_no_room(increments: Tally[int], reasons: Iterable[DiscardReason]) -> None:
    for reason in reasons:
        increments[discarded(reason)] += 1
        if reason in _NO_ROOM_COUNTERS:
            increments[_NO_ROOM_COUNTERS[reason]] += 1
