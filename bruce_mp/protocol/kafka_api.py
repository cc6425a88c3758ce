"""Kafka's requests and responses as bytes: the one module that knows kafka-python, which `kafka_messages` loads.

kafka-python brings Apache's own message schemas, which is what we want of it; its networking stays unused.  Fences:

* It is untyped and shows its classes; here only `kafka_types` go in and out.
* Malformed input makes it raise whatever Python raises at that spot.  All of that becomes `RemoteProtocolError` when a
  broker sent it and `LocalProtocolError` when we did: a caller never sees another error.
* It copies a produce request several times (four times the cost of one copy for 1 MB), and makes objects of whatever a
  response might say; so what is done for each batch is done by `produce_request` and `produce_response` instead.

A request is a whole frame (size, header, body).  A response is given without its size, from the correlation id on.
Protocol: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import re
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bruce_mp import __version__
from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka_messages import messages
from bruce_mp.protocol.kafka_types import (
    NO_BROKER,
    ApiRange,
    ApiVersions,
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    ProducerIdResponse,
    SaslHandshake,
    SaslToken,
    TopicMetadata,
    broker_address,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "UNSUPPORTED_VERSION",
    "decode_api_versions",
    "decode_create_topics",
    "decode_metadata",
    "decode_producer_id",
    "decode_sasl_handshake",
    "decode_sasl_token",
    "encode_api_versions",
    "encode_create_topics",
    "encode_init_producer_id",
    "encode_metadata",
    "encode_sasl_handshake",
    "encode_sasl_token",
    "read_correlation_id",
]

_METADATA: Final = messages("metadata")
_PRODUCER: Final = messages("producer")
"""What each connection needs; logins and the making of topics load theirs."""

UNSUPPORTED_VERSION: Final = 35
CLIENT_SOFTWARE: Final = "bruce-mp"
RESPONSE_HEAD: Final = struct.Struct(">ih")  # correlation id, and what is the error code in an ApiVersions response

ENDLESS_VARINT: Final = re.compile(rb"[\x80-\xff]{4096}")

K = TypeVar("K")
V = TypeVar("V")

CODEC_FAILURES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    struct.error,
)
"""What kafka-python raises on bytes or values that do not fit a schema; UnicodeDecodeError is a ValueError."""


@contextmanager
def _refusing(what: str, error: type[LocalProtocolError | RemoteProtocolError]) -> Iterator[None]:
    try:
        yield
    except CODEC_FAILURES as failure:
        raise error(f"{what} does not follow the protocol: {type(failure).__name__}: {failure}") from failure


# --- requests ---------------------------------------------------------------------------------------------------------
def _encode(request: Any, correlation_id: int, client_id: str) -> bytes:
    with _refusing(f"The {request.name} that we were asked to send", LocalProtocolError):
        request.with_header(correlation_id=correlation_id, client_id=client_id or None)
        return bytes(request.encode(header=True, framed=True))


def _build(cls: Any, version: int, **fields: Any) -> Any:
    with _refusing(f"The {cls.name} v{version} that we were asked to send", LocalProtocolError):
        return cls[version](**fields)


def encode_api_versions(version: int, correlation_id: int, client_id: str) -> bytes:
    """Which versions do you speak?  From version 3 on the broker also learns our name and release."""
    fields = {"client_software_name": CLIENT_SOFTWARE, "client_software_version": __version__} if version >= 3 else {}
    return _encode(_build(_METADATA.ApiVersionsRequest, version, **fields), correlation_id, client_id)


def encode_metadata(
    version: int,
    correlation_id: int,
    client_id: str,
    topics: Sequence[bytes] | None = None,
    *,
    allow_auto_topic_creation: bool = False,
) -> bytes:
    """Who leads what?  `topics` None asks for all.

    Before version 4 the broker's own setting alone decides whether a topic that is named gets created.
    Raises LocalProtocolError for a name that is not UTF-8, which can be no topic, and for no names before version 1,
    where that would mean all.
    """
    with _refusing("A topic name in a metadata request", LocalProtocolError):
        names = None if topics is None else [str(topic, "utf-8") for topic in topics]
    if version == 0 and names == []:
        raise LocalProtocolError("Metadata v0 cannot ask for no topics: an empty list means all of them there.")
    wanted = None if names is None else [_METADATA.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    request = _build(
        _METADATA.MetadataRequest, version, topics=wanted, allow_auto_topic_creation=allow_auto_topic_creation
    )
    return _encode(request, correlation_id, client_id)


def encode_init_producer_id(version: int, correlation_id: int, client_id: str) -> bytes:
    """Asks for a new producer id, without transactions."""
    request = _build(_PRODUCER.InitProducerIdRequest, version, transactional_id=None, transaction_timeout_ms=0)
    return _encode(request, correlation_id, client_id)


def encode_create_topics(
    version: int,
    correlation_id: int,
    client_id: str,
    topics: Sequence[bytes],
    *,
    partitions: int,
    replication: int,
    timeout_ms: int,
) -> bytes:
    """Make these topics; -1 partitions or replicas leave the number to the broker, from version 4 on.

    Raises LocalProtocolError for a name that is not UTF-8.
    """
    with _refusing("A topic name in a request to make topics", LocalProtocolError):
        names = [str(topic, "utf-8") for topic in topics]
    request = messages("admin").CreateTopicsRequest
    wanted = [
        request.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication, assignments=[], configs=[]
        )
        for name in names
    ]
    return _encode(_build(request, version, topics=wanted, timeout_ms=timeout_ms), correlation_id, client_id)


def encode_sasl_handshake(version: int, correlation_id: int, client_id: str, mechanism: str) -> bytes:
    """May we log in so?"""
    return _encode(
        _build(messages("sasl").SaslHandshakeRequest, version, mechanism=mechanism), correlation_id, client_id
    )


def encode_sasl_token(version: int, correlation_id: int, client_id: str, token: bytes) -> bytes:
    """A step of a login."""
    return _encode(
        _build(messages("sasl").SaslAuthenticateRequest, version, auth_bytes=token), correlation_id, client_id
    )


# --- responses --------------------------------------------------------------------------------------------------------
def read_correlation_id(frame: bytes) -> int:
    """The first four bytes of every response.  Raises RemoteProtocolError if there are fewer."""
    if len(frame) < 4:
        raise RemoteProtocolError(f"A response of {len(frame)} bytes is too short for a correlation id.")
    return int.from_bytes(frame[:4], "big", signed=True)


def _decode(cls: Any, frame: bytes, version: int) -> Any:
    # kafka-python follows an unsigned varint as far as its bytes go, in time that grows with their square: 300 kB of
    # 0xff keep it busy for 3 s.  No response has that many such bytes in a row for a good reason.
    if ENDLESS_VARINT.search(frame):
        raise RemoteProtocolError(f"The broker's {cls.name} holds a number that does not end.")
    return cls.decode(frame, version=version, header=True)


def decode_api_versions(frame: bytes, version: int) -> ApiVersions:
    """After an error only the code is read: what follows it differs from broker to broker."""
    what = "The broker's list of API versions"
    with _refusing(what, RemoteProtocolError):
        _, error = RESPONSE_HEAD.unpack_from(frame)
        if error != 0:
            return ApiVersions(error, {})
        response = _decode(_METADATA.ApiVersionsResponse, frame, version)
        return ApiVersions(0, {api.api_key: ApiRange(api.min_version, api.max_version) for api in response.api_keys})


def decode_producer_id(frame: bytes, version: int) -> ProducerIdResponse:
    """Raises RemoteProtocolError for bytes that are no such response, and for an id below 0 without an error."""
    with _refusing("The broker's answer with a producer id", RemoteProtocolError):
        got = _decode(_PRODUCER.InitProducerIdResponse, frame, version)
    if got.error_code != 0:
        return ProducerIdResponse(got.error_code, -1, -1, got.throttle_time_ms)
    if got.producer_id < 0 or got.producer_epoch < 0:
        raise RemoteProtocolError(f"The broker gave us producer id {got.producer_id} epoch {got.producer_epoch}.")
    return ProducerIdResponse(0, got.producer_id, got.producer_epoch, got.throttle_time_ms)


def decode_create_topics(frame: bytes, version: int) -> dict[bytes, int]:
    """The error code for each topic.  Raises RemoteProtocolError."""
    with _refusing("The broker's answer to a request to make topics", RemoteProtocolError):
        response = _decode(messages("admin").CreateTopicsResponse, frame, version)
        return {topic.name.encode(): topic.error_code for topic in response.topics}


def decode_sasl_handshake(frame: bytes, version: int) -> SaslHandshake:
    """Raises RemoteProtocolError."""
    with _refusing("The broker's answer about logins", RemoteProtocolError):
        got = _decode(messages("sasl").SaslHandshakeResponse, frame, version)
        return SaslHandshake(got.error_code, tuple(got.mechanisms))


def decode_sasl_token(frame: bytes, version: int) -> SaslToken:
    """Raises RemoteProtocolError."""
    with _refusing("The broker's answer to a login", RemoteProtocolError):
        got = _decode(messages("sasl").SaslAuthenticateResponse, frame, version)
        return SaslToken(got.error_code, got.error_message, bytes(got.auth_bytes), got.session_lifetime_ms)


# --- metadata ---------------------------------------------------------------------------------------------------------
def decode_metadata(frame: bytes, version: int) -> ClusterMetadata:
    """Raises RemoteProtocolError for bytes that are no such response, for ids and ports out of range, for no brokers.

    A partition without a usable leader is kept, and named as such: the number of a topic's partitions must not change
    with an outage, or messages with a partition key would move.
    """
    with _refusing("The broker's metadata", RemoteProtocolError):
        return _ClusterReader(_decode(_METADATA.MetadataResponse, frame, version)).read()


class _ClusterReader:
    """One metadata response on its way to ClusterMetadata; counts what it had to put right."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._brokers: dict[int, BrokerAddress] = {}
        self._unknown_leaders = 0
        self._duplicates = 0

    def read(self) -> ClusterMetadata:
        got = self._response
        self._brokers = self._first_of_each(
            (node.node_id, broker_address(node.node_id, node.host, node.port, node.rack)) for node in got.brokers
        )
        if not self._brokers:
            raise RemoteProtocolError(
                "The broker's metadata lists no brokers. It may not have joined its cluster yet; "
                "and Kafka 0.8 lists none until there is a topic."
            )
        # A topic without a name was asked for by its id, which we never do.
        named = (topic for topic in got.topics if topic.name is not None)
        topics = self._first_of_each((topic.name.encode(), self._topic(topic)) for topic in named)
        return ClusterMetadata(
            self._brokers, topics, got.controller_id, got.throttle_time_ms, self._unknown_leaders, self._duplicates
        )

    def _first_of_each(self, pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
        found: dict[K, V] = {}
        for key, value in pairs:
            self._duplicates += key in found
            found.setdefault(key, value)
        return found

    def _topic(self, topic: Any) -> TopicMetadata:
        partitions = ((got.partition_index, self._partition(got)) for got in topic.partitions)
        return TopicMetadata(topic.error_code, self._first_of_each(partitions))

    def _partition(self, got: Any) -> PartitionMetadata:
        if got.partition_index < 0 or got.leader_id < NO_BROKER:
            raise RemoteProtocolError(
                f"The broker's metadata names partition {got.partition_index} with leader {got.leader_id}."
            )
        leader = got.leader_id
        if leader != NO_BROKER and leader not in self._brokers:
            self._unknown_leaders += 1
            leader = NO_BROKER
        return PartitionMetadata(got.error_code, leader, got.leader_epoch)
