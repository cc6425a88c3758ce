"""The daemon's types for the content of Kafka's requests and responses.

Topic names are bytes, as in the slab.  As in Kafka, the id -1 means "none" or "unknown", and the `error` 0 means
success.  `throttle_ms` is the time for which the broker throttles the client, to enforce a quota.
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
"""Error codes with which a partition accepts messages: 0, and 9 (REPLICA_NOT_AVAILABLE), which concerns a follower and
not the leader (seen with Kafka 0.8 to 4.3)."""

WRITE_OPERATION: Final = 4
"""Kafka's code of the ACL operation WRITE, which a producer must be permitted on its topics."""

TRANSIENT_PRODUCER_ID_ERRORS: Final = frozenset({-1, 7, 8, 13, 14, 15, 16, 51})
"""Error codes of InitProducerId after which a retry may succeed.

-1: an unnamed fault, for example a lost connection to ZooKeeper; 7, 8, 13: timeout, broker not available, network
failure; 14, 15, 16: the coordinator is loading, unavailable or at another broker; 51: a transaction is under way.
"""

ACKS_ALL: Final = -1
"""The value of `kafka.required_acks` that requests acknowledgement by all in-sync replicas; idempotence needs it."""
TOPIC_AUTHORIZATION_FAILED: Final = 29
"""Kafka's error code for a topic that the daemon's Kafka user may not access."""


class ApiRange(Struct, frozen=True):
    """A range of versions of one API (kind of request), both ends included."""

    lowest: int
    highest: int


class ApiVersions(Struct, frozen=True):
    """The response to ApiVersions: `apis` has the supported versions by API key; it is empty if `error` is not 0."""

    error: int
    apis: dict[int, ApiRange]


class BrokerAddress(Struct, frozen=True):
    """The advertised address of a broker; `rack` is None if the broker has no rack."""

    host: str
    port: int
    rack: str | None = None


def broker_address(node: int, host: str | None, port: int, rack: str | None) -> BrokerAddress:
    """Return the address of broker `node` from a response; raise RemoteProtocolError if the address is invalid."""
    if node < 0 or not host or not 1 <= port <= MAX_PORT:
        raise RemoteProtocolError(f"The broker names broker {node} with the invalid address {host!r} port {port}.")
    return BrokerAddress(host, port, rack)


class PartitionMetadata(Struct, frozen=True):
    """One partition; `leader` is a broker id, or NO_BROKER if there is no leader or the list of brokers lacks it."""

    error: int
    leader: int
    leader_epoch: int = -1

    @property
    def is_available(self) -> bool:
        return self.leader != NO_BROKER and self.error in USABLE_PARTITION_ERRORS


class TopicMetadata(Struct, frozen=True):
    """One topic, with `partitions` by index; some may be missing if `error` is not 0."""

    error: int
    partitions: dict[int, PartitionMetadata]
    topic_id: bytes = b""
    """Kafka's id of the topic, which changes if the topic is re-created; zeros or b"" if the broker reports none."""
    operations: frozenset[int] | None = None
    """Codes of the operations that the daemon's Kafka user may do on the topic; None if the response omits them."""


class ClusterMetadata(Struct, frozen=True):
    """The response to Metadata, with one or more `brokers` by id; harmless inconsistencies are mended and counted."""

    brokers: dict[int, BrokerAddress]
    topics: dict[bytes, TopicMetadata]
    controller: int = NO_BROKER
    throttle_ms: int = 0
    unknown_leaders: int = 0
    """Number of partitions with a leader that `brokers` does not have; in `topics`, their leader is NO_BROKER."""
    duplicates: int = 0
    """Number of repeated entries of brokers, topics and partitions; the first entry of each applies."""
    cluster_id: str = ""
    """Kafka's id of the cluster; empty if the version of the response is below 2."""


class PartitionData(Struct, frozen=True):
    """One partition's part of a produce request: exactly one record batch, or a message set for an older broker.

    `header` is the header of the record batch, and `records` is the rest, which follows it. For a message set, `header`
    is empty and `records` has the whole set.
    """

    topic: bytes
    partition: int
    records: bytes
    header: bytes = b""


class EncodedTopics(Struct, frozen=True):
    """The topics of a produce request, encoded in `buffers`; batch i is for partition `partitions[i]` of `names[i]`."""

    buffers: list[bytes]
    names: list[bytes]
    partitions: list[int]


class PartitionAck(Struct, frozen=True):
    """The response for one partition's batch.

    `log_append_ms` is -1 unless the topic's message.timestamp.type is LogAppendTime.  `record_errors` has the index in
    the batch and the error text of each rejected record (Produce versions 8 and later).  With the error
    NOT_LEADER_OR_FOLLOWER, `leader` and `leader_epoch` may name the present leader (versions 10 and later).
    """

    topic: bytes
    partition: int
    error: int
    base_offset: int = -1
    log_append_ms: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()
    error_message: str | None = None
    leader: int = NO_BROKER
    leader_epoch: int = -1


class ProduceResponse(Struct, frozen=True):
    """The response to Produce; `endpoints` has the addresses of the leaders that the acks name, by broker id.

    `acks` may be empty if no ack has an error: see `BrokerConnection.request_produce`.
    """

    acks: tuple[PartitionAck, ...]
    throttle_ms: int = 0
    endpoints: dict[int, BrokerAddress] = {}


class ProducerIdResponse(Struct, frozen=True):
    """The response to InitProducerId; id and epoch are -1 if `error` is not 0."""

    error: int
    producer_id: int
    producer_epoch: int
    throttle_ms: int = 0

    @property
    def is_retriable(self) -> bool:
        """True if the error is transient; for example, a KRaft broker responds with 14 until it has a block of ids."""
        return self.error in TRANSIENT_PRODUCER_ID_ERRORS


class SaslHandshakeResponse(Struct, frozen=True):
    """The response to SaslHandshake: the names of the mechanisms that the broker has enabled."""

    error: int
    mechanisms: tuple[str, ...]


class SaslAuthenticateResponse(Struct, frozen=True):
    """The response to SaslAuthenticate; `lifetime_ms` is the lifetime of the login, or 0 for no limit (KIP-368)."""

    error: int
    message: str | None
    token: bytes
    lifetime_ms: int
