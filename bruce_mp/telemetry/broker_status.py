"""Broker status that dispatchers and router report to the status process once a second.

It covers connections, pauses and their reasons. The status process counts waiting messages itself, in the slab. Times
are in ms on the steady clock, because the health page derives ages from them; pages show them as wall-clock times.

`dispatcher.connection_status` and `router.cluster_status` publish it, `status.broker_status` keeps the latest reports,
and the page `/brokers` shows them.
"""

# No `from __future__ import annotations` here: msgspec evaluates the annotations at run time.

from typing import Final

import msgspec

from bruce_mp.telemetry.stalls import PartitionStall

__all__ = [
    "ALL_PARTITIONS",
    "CONNECTED",
    "CONNECTING",
    "FAILED",
    "IDLE",
    "NO_LEADER",
    "PUBLISH_EVERY_S",
    "BrokerStatus",
    "PartitionError",
    "PausedScope",
    "RecreatedTopic",
    "RouterStatus",
]

IDLE: Final = "not connected"
"""No connection, because there was nothing to send since the last connection or since the start."""
CONNECTING: Final = "connecting"
CONNECTED: Final = "connected"
FAILED: Final = "failed"

NO_LEADER: Final = "no leader"
"""State of a scope that is paused because the metadata has no available leader for it."""
ALL_PARTITIONS: Final = -1
"""Partition number of a pause of the whole topic."""

MAX_LISTED_SCOPES: Final = 100
"""Pauses that a report lists, so that it fits into a frame; the rest is counted."""
PUBLISH_EVERY_S: Final = 1.0
"""Interval of the reports."""


class PartitionError(msgspec.Struct, frozen=True):
    """The retriable error in the last response for a partition: its name, and the time since which it recurs."""

    topic: bytes
    partition: int
    error: str
    since_ms: int


class BrokerStatus(msgspec.Struct, frozen=True, tag=True):
    """A dispatcher's report about its broker.

    `connection` is IDLE, CONNECTING, CONNECTED or FAILED, since `since_ms`. Without an error, `last_error` is empty and
    `last_error_ms` is 0. `exactly_once` is True if the broker detects duplicates, None before the first connection.
    `needs_operator` is True if connections fail until an operator corrects the set-up. `certificate_ends_s` is the
    expiry of the broker's certificate, in seconds since the epoch. `acked_ms` is the time of the first report after the
    last acknowledgement, 0 without one. `stalls` lists the partitions whose oldest message stays the same.
    """

    slot: int
    node: int
    host: str
    port: int
    connection: str
    since_ms: int
    requests_in_flight: int
    last_error: str
    last_error_ms: int
    exactly_once: bool | None
    partition_errors: tuple[PartitionError, ...] = ()
    needs_operator: bool = False
    certificate_ends_s: float | None = None
    acked_ms: int = 0
    stalls: tuple[PartitionStall, ...] = ()


class PausedScope(msgspec.Struct, frozen=True):
    """A paused scope: the dispatcher of `slot`, or a partition or all partitions of `topic`.

    For a partition, `slot` is the one that holds its messages, or None. `topic` is empty for a dispatcher. `state` is
    the router's state of the scope, or `NO_LEADER`.
    """

    slot: int | None
    topic: bytes
    partition: int
    state: str
    since_ms: int


class RecreatedTopic(msgspec.Struct, frozen=True):
    """A topic that was deleted and created again, and the time at which the metadata showed it."""

    topic: bytes
    seen_ms: int


class RouterStatus(msgspec.Struct, frozen=True, tag=True):
    """The router's report about the cluster.

    `brokers` lists (node, host, port) from the metadata. `failing_since_ms` is None if the last metadata fetch
    succeeded; otherwise `error` is the reason, and `needs_operator` is True if only an operator can correct it.
    `paused` lists the first of the `paused_count` pauses, those in state `NO_LEADER` before the others;
    `paused_by_topic` counts all pauses of each topic. `producer_error` is the error code of a refused producer id, or
    0. `forbidden` lists topics with waiting messages that the brokers hide from the daemon's user. `asking` is the
    broker of the metadata request in progress, and `previous_failure` is the reason why the previous broker's request
    failed. Both are empty without a request. `stalls` lists the partitions whose oldest message waits in the router.
    `foreign_cluster` is the cluster of the brokers if the messages are for another one, else empty. `recreated` lists
    the latest topics of the last hour that were deleted and created again.
    """

    brokers: tuple[tuple[int, str, int], ...]
    failing_since_ms: int | None
    error: str
    paused: tuple[PausedScope, ...]
    paused_count: int
    needs_operator: bool = False
    producer_error: int = 0
    forbidden: tuple[bytes, ...] = ()
    asking: str = ""
    previous_failure: str = ""
    stalls: tuple[PartitionStall, ...] = ()
    foreign_cluster: str = ""
    recreated: tuple[RecreatedTopic, ...] = ()
    paused_by_topic: dict[bytes, int] = {}
