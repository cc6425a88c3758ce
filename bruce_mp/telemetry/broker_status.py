"""Reports about brokers, connections and pauses, which the dispatchers and the router send once a second.

`dispatcher.connection_status` and `router.cluster_status` send the reports to the status process, where
`status.broker_status` keeps the latest reports.  Times ending in `_ms` are on the steady clock, because `/healthz`
computes ages from them; `/brokers` converts them to wall-clock times.
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
"""The state of a partition or topic if its messages wait because the metadata has no available leader."""
ALL_PARTITIONS: Final = -1
"""The partition number in an entry for a whole topic or a whole dispatcher."""

MAX_LISTED_SCOPES: Final = 100
"""The maximum number of paused scopes in a report, so that the report fits into one frame of the link."""
PUBLISH_EVERY_S: Final = 1.0
"""The interval of the reports."""


class PartitionError(msgspec.Struct, frozen=True):
    """The name of the retriable error that every response for a partition has had since `since_ms`."""

    topic: bytes
    partition: int
    error: str
    since_ms: int


class BrokerStatus(msgspec.Struct, frozen=True, tag=True):
    """A dispatcher's report about its broker.

    `slot` is the dispatcher slot. `connection` has been IDLE, CONNECTING, CONNECTED or FAILED since `since_ms`. If no
    error has occurred, `last_error` is empty and `last_error_ms` is 0. `exactly_once` is True if the broker detects
    repeated batches, and None before the first connection. `needs_operator` is True if connections fail until an
    operator corrects the configuration. `certificate_ends_s` is the time at which the broker's certificate expires, in
    seconds since the epoch, or None if the broker has shown no certificate. `acked_ms` is about the time of the last
    acknowledgment (the time of the report that followed it), or 0 if there was none.
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
    """A paused scope: the dispatcher with the slot `slot`, or one partition or all partitions of `topic`.

    If a partition is paused, `slot` is the slot of the dispatcher that holds the messages of the partition, or None if
    no dispatcher does. If a dispatcher is paused, `topic` is empty. `state` is a value of
    `router.pause_protocol.ScopeState`, or `NO_LEADER`.
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

    `brokers` lists (broker id, host, port) from the metadata. If the last metadata fetch succeeded, `failing_since_ms`
    is None; otherwise `error` is the reason of the failure, and `needs_operator` is True if only an operator can
    correct it. `paused_count` and `paused_by_topic` count all paused scopes; `paused` lists at most MAX_LISTED_SCOPES,
    and begins with the scopes in state `NO_LEADER`. `producer_error` is the error code with which a broker refused a
    producer id, or 0. `forbidden` lists the topics that have waiting messages, but are hidden from the daemon's Kafka
    user by the brokers. `asking` is the broker that the metadata fetch in progress asks, and `previous_failure` is the
    last error of this fetch; both are empty if no fetch is in progress. If the held messages are for another cluster
    than the cluster of the brokers, `foreign_cluster` is the id of the brokers' cluster; otherwise it is empty.
    `recreated` lists the latest topics that were deleted and created again in the last hour.
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
