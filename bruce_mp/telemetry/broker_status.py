"""Reports of broker status, which the dispatchers and the router send to the status process once a second.

The reports cover connections, pauses and their reasons. The status process counts the waiting messages itself, in the
slab. Times are in ms on the steady clock, because the health page derives ages from them; pages show them as wall-clock
times.

`dispatcher.connection_status` and `router.cluster_status` send the reports, `status.broker_status` keeps the latest
ones, and the page `/brokers` shows them.
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
"""The state of a partition or topic with messages that wait because the metadata has no available leader."""
ALL_PARTITIONS: Final = -1
"""The partition number in an entry for a whole topic or a whole dispatcher."""

MAX_LISTED_SCOPES: Final = 100
"""The maximum number of pauses that a report lists, so that it fits into a frame; `paused_count` has all."""
PUBLISH_EVERY_S: Final = 1.0
"""The interval of the reports."""


class PartitionError(msgspec.Struct, frozen=True):
    """The retriable error in the last response for a partition: its name, and the time of its first occurrence."""

    topic: bytes
    partition: int
    error: str
    since_ms: int


class BrokerStatus(msgspec.Struct, frozen=True, tag=True):
    """A dispatcher's report about its broker.

    `connection` is IDLE, CONNECTING, CONNECTED or FAILED, since `since_ms`. If there was no error, `last_error` is
    empty and `last_error_ms` is 0. `exactly_once` is True if the broker detects repeated batches, None before the first
    connection. `needs_operator` is True if connections fail until an operator corrects the configuration.
    `certificate_ends_s` is the time at which the broker's certificate expires, in seconds since the epoch. `acked_ms`
    is the time of the first report after the last acknowledgment, 0 if there was none. `stalls` lists the partitions
    with an oldest message that stays the same.
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
    """A paused scope: the dispatcher in `slot`, or one partition or all partitions of `topic`.

    For a partition, `slot` is the slot of the dispatcher that holds its messages, or None. `topic` is empty for a
    dispatcher. `state` is the router's state of the scope, or `NO_LEADER`.
    """

    slot: int | None
    topic: bytes
    partition: int
    state: str
    since_ms: int


class RecreatedTopic(msgspec.Struct, frozen=True):
    """A topic that was deleted and created again, and the time at which the router saw this in the metadata."""

    topic: bytes
    seen_ms: int


class RouterStatus(msgspec.Struct, frozen=True, tag=True):
    """The router's report about the cluster.

    `brokers` lists (broker id, host, port) from the metadata. `failing_since_ms` is None if the last metadata fetch
    succeeded; otherwise `error` is the reason, and `needs_operator` is True if only an operator can correct it.
    `paused_count` is the number of all pauses; `paused` lists the first ones, and those in state `NO_LEADER` come
    first.  `paused_by_topic` has the number of all pauses of each topic. `producer_error` is the error code with which
    a broker refused a producer id, or 0. `forbidden` lists topics with waiting messages that the brokers hide from the
    daemon's Kafka user. `asking` is the broker that the metadata fetch in progress asks, and `previous_failure` is the
    last error of this fetch; both are empty if no fetch is in progress. `stalls` lists the partitions with an oldest
    message that stays the same in the router. `foreign_cluster` is the id of the brokers' cluster if the messages are
    for another cluster, else empty. `recreated` lists the latest topics that were deleted and created again in the last
    hour.
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
