"""Events about discarded messages. The processes that handle messages send them to the status process, for its reports.

A discard event sums all discards of one kind since the process last sent its events. An event may be lost, because
only the counters in the slab have to be exact; events add details to them, such as topics, times and samples.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

import msgspec

from bruce_mp.errors import DiscardReason

__all__ = ["DiscardEvent", "DiscardReportEvent", "DuplicateEvent", "SenderEvent"]


class DiscardEvent(msgspec.Struct, frozen=True, tag=True):
    """`count` discarded messages of a topic, with the reason.

    `topic` is empty if it could not be parsed or if there were too many topics. Timestamps are the clients', in ms.
    `samples` are the beginnings of the last messages, the oldest first. `version` or `api_key` is set if the daemon
    does not support it. `is_tcp` marks an unclean disconnect of a TCP connection.
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
    """`count` messages of a local process that were discarded for a reason; `sample` is the start of the last one.

    `command` is the name of the process, or empty after its end.
    """

    reason: DiscardReason
    pid: int
    uid: int
    command: str
    count: int
    sample: bytes


DiscardReportEvent = DiscardEvent | DuplicateEvent | SenderEvent
"""An event of any of these kinds; discard reports sum them."""
