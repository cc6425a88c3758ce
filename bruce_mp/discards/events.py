"""Events about discarded messages, for the discard reports of the status process.

A discard event sums all discards of one kind since the process last sent its events. An event may be lost: only the
counters in the slab are exact, and events add details such as topics, times and samples.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

import msgspec

from bruce_mp.errors import DiscardReason

__all__ = ["DiscardEvent", "DiscardReportEvent", "DuplicateEvent", "SenderEvent"]


class DiscardEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` messages of a topic that were discarded for a reason; the timestamps are the clients', in ms.

    `topic` is empty if the messages could not be parsed, or if the process had no room for another topic (MAX_ENTRIES).
    `samples` has the first bytes of the latest messages, the oldest message first. `version` and `api_key` are set only
    if the daemon does not support their value. `is_tcp` is True for unclean disconnects of TCP connections.
    """

    reason: DiscardReason
    topic: bytes
    count: int
    min_timestamp: int
    max_timestamp: int
    samples: tuple[bytes, ...] = ()
    version: int | None = None
    api_key: int | None = None
    is_tcp: bool = False


class DuplicateEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` messages of a topic that were sent again although the broker may have stored them the first time."""

    topic: bytes
    count: int
    min_timestamp: int
    max_timestamp: int


class SenderEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` messages of a local process that were discarded for a reason.

    `sample` has the first bytes of the latest message. `command` is the name of the process; empty if the process had
    ended before its name was read.
    """

    reason: DiscardReason
    pid: int
    uid: int
    command: str
    count: int
    sample: bytes


DiscardReportEvent = DiscardEvent | DuplicateEvent | SenderEvent
"""An event that a discard report sums."""
