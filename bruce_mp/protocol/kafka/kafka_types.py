"""The daemon's types for the content of Kafka's requests and responses.

The wire layouts are in `kafka_api`, `produce_request` and `produce_response`.
Topic names are bytes everywhere, as they are in the slab.  Ids follow Kafka: -1 means "none" or "unknown".
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from bruce_mp.errors import RemoteProtocolError

__all__ = [
    "ACKS_ALL",
    "NO_BROKER",
    "TOPIC_AUTHORIZATION_FAILED",
    "TRANSIENT_PRODUCER_ID_ERRORS",
    "WRITE_OPERATION",
    "ApiRange",
    "ApiVersions",
    "BrokerAddress",
    "ClusterMetadata",
    "PartitionAck",
    "PartitionData",
    "PartitionMetadata",
    "ProduceResponse",
    "ProducerIdResponse",
    "SaslAuthenticateResponse",
    "SaslHandshakeResponse",
    "TopicMetadata",
    "broker_address",
]

NO_BROKER: Final = -1
MAX_PORT: Final = 65535
USABLE_PARTITION_ERRORS: Final = frozenset({0, 9})
"""9, REPLICA_NOT_AVAILABLE, concerns a follower; the leader accepts messages (seen on 0.8 to 4.3)."""

WRITE_OPERATION: Final = 4
"""Kafka's code of the ACL operation that a producer needs."""

TRANSIENT_PRODUCER_ID_ERRORS: Final = frozenset({-1, 7, 8, 13, 14, 15, 16, 51})
"""Timeout, broker or network failure; coordinator loading, unavailable or moved; transaction under way.

UNKNOWN_SERVER_ERROR, -1, comes from brokers that lost their coordination service.
"""

ACKS_ALL: Final = -1
"""The value of `kafka.required_acks` for all in-sync replicas, which idempotence needs."""
TOPIC_AUTHORIZATION_FAILED: Final = 29
"""Kafka's error for a topic that the user may not see."""


class ApiRange(Struct, frozen=True):
    """Versions of one API, both ends included."""

    lowest: int
    highest: int


class ApiVersions(Struct, frozen=True):
    """The response to ApiVersions; after an error `apis` is empty."""

    error: int
    apis: dict[int, ApiRange]


class BrokerAddress(Struct, frozen=True):
    """The advertised address of a broker; `rack` is None without one."""

    host: str
    port: int
    rack: str | None = None


def broker_address(node: int, host: str | None, port: int, rack: str | None) -> BrokerAddress:
    """Build the address that a response names; raise RemoteProtocolError for an impossible one."""
    if node < 0 or not host or not 1 <= port <= MAX_PORT:
        raise RemoteProtocolError(f"The broker names broker {node} with the invalid address {host!r} port {port}.")
    return BrokerAddress(host, port, rack)


class PartitionMetadata(Struct, frozen=True):
    """One partition; `leader` is NO_BROKER if it has none, or if the same response does not list its leader."""

    error: int
    leader: int
    leader_epoch: int = -1

    @property
    def is_available(self) -> bool:
        return self.leader != NO_BROKER and self.error in USABLE_PARTITION_ERRORS


class TopicMetadata(Struct, frozen=True):
    """One topic; with an `error` other than 0 its partitions may be missing."""

    error: int
    partitions: dict[int, PartitionMetadata]
    topic_id: bytes = b""
    """Kafka's id of the topic (version 10 and later), which changes if the topic is re-created; else empty or zeros."""
    operations: frozenset[int] | None = None
    """The operations that the daemon's user may do, by Kafka's codes; None if the response omits them."""


class ClusterMetadata(Struct, frozen=True):
    """The response to Metadata, with at least one broker.  Harmless inconsistencies are corrected and counted."""

    brokers: dict[int, BrokerAddress]
    topics: dict[bytes, TopicMetadata]
    controller: int = NO_BROKER
    throttle_ms: int = 0
    unknown_leaders: int = 0
    """Partitions with a leader outside the list of brokers; in `topics` they have NO_BROKER."""
    duplicates: int = 0
    """Brokers, topics and partitions that occur twice; the first entry applies."""
    cluster_id: str = ""
    """The id that the cluster gave itself (version 2 and later); else empty."""


class PartitionData(Struct, frozen=True):
    """One partition's part of a produce request: exactly one record batch, or a message set for an older broker.

    `header` is that of a record batch, and is sent right before the `records`; empty for a message set.
    """

    topic: bytes
    partition: int
    records: bytes
    header: bytes = b""


class EncodedTopics(Struct, frozen=True):
    """The topics of a produce request as buffers in order, and the (topic, partition) of each record batch."""

    buffers: list[bytes]
    partitions: list[tuple[bytes, int]]


class PartitionAck(Struct, frozen=True):
    """The response for one partition's batch.

    `log_append_time` is in milliseconds, -1 unless message.timestamp.type is LogAppendTime.  `record_errors` has the
    index in the batch and the error text of each rejected record (version 8 and later).  `leader` and `leader_epoch`
    are the broker's hint after NOT_LEADER_OR_FOLLOWER (version 10 and later).
    """

    topic: bytes
    partition: int
    error: int
    base_offset: int = -1
    log_append_time: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()
    error_message: str | None = None
    leader: int = NO_BROKER
    leader_epoch: int = -1


class ProduceResponse(Struct, frozen=True):
    """The response to Produce; `endpoints` are the addresses of the hinted leaders."""

    acks: tuple[PartitionAck, ...]
    throttle_ms: int = 0
    endpoints: dict[int, BrokerAddress] = {}


class ProducerIdResponse(Struct, frozen=True):
    """The response to InitProducerId; id and epoch are -1 after an error."""

    error: int
    producer_id: int
    producer_epoch: int
    throttle_ms: int = 0

    @property
    def is_retriable(self) -> bool:
        """True for a transient error: a KRaft broker responds with 14 until it has a block of ids."""
        return self.error in TRANSIENT_PRODUCER_ID_ERRORS


class SaslHandshakeResponse(Struct, frozen=True):
    """The response to SaslHandshake: the mechanisms that the broker has enabled."""

    error: int
    mechanisms: tuple[str, ...]


class SaslAuthenticateResponse(Struct, frozen=True):
    """The response to SaslAuthenticate.  `lifetime_ms` is the login's lifetime, 0 without limit (KIP-368)."""

    error: int
    message: str | None
    token: bytes
    lifetime_ms: int
