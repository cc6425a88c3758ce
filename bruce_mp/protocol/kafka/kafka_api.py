"""Encoding of Kafka's requests and responses; the only module that uses kafka-python, by `kafka_messages`.

kafka-python provides Apache's message schemas; its networking stays unused.  This module hides its weaknesses:

* Its classes are untyped; the functions here use only `kafka_types`.
* Malformed input makes it raise arbitrary Python errors.  They become `RemoteProtocolError` for a broker's data and
  `LocalProtocolError` for a caller's: no other error leaves this module.
* It copies a produce request several times (four times the cost of one copy for 1 MB), and creates objects for each
  field of a response.  So `produce_request` and `produce_response` do the work for batches instead.

A request is a whole frame (size, header, body).  A response begins with its correlation id, without the size.
Protocol: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import re
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bruce_mp import __version__
from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka.kafka_messages import messages
from bruce_mp.protocol.kafka.kafka_types import (
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
"""The messages of each connection; logins and topic creation load theirs."""

UNSUPPORTED_VERSION: Final = 35
CLIENT_SOFTWARE: Final = "bruce-mp"
RESPONSE_HEAD: Final = struct.Struct(">ih")  # correlation id, and the error code of an ApiVersions response

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
"""The errors of kafka-python on bytes or values outside a schema; UnicodeDecodeError is a ValueError."""


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
    """Encode an ApiVersions request, from version 3 on with the client's name and release."""
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
    """Encode a Metadata request, for all topics if `topics` is None.

    Before version 4 only the broker's setting decides about the creation of named topics.
    Raises LocalProtocolError for a name that is not UTF-8, and for an empty list before version 1, which would mean
    all topics.
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
    """Encode a request for a new producer id, without transactions."""
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
    """Encode a CreateTopics request; -1 leaves a number to the broker, from version 4 on.

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
    """Encode a SaslHandshake request for a mechanism."""
    return _encode(
        _build(messages("sasl").SaslHandshakeRequest, version, mechanism=mechanism), correlation_id, client_id
    )


def encode_sasl_token(version: int, correlation_id: int, client_id: str, token: bytes) -> bytes:
    """Encode one token of a login as a SaslAuthenticate request."""
    return _encode(
        _build(messages("sasl").SaslAuthenticateRequest, version, auth_bytes=token), correlation_id, client_id
    )


# --- responses --------------------------------------------------------------------------------------------------------
def read_correlation_id(frame: bytes) -> int:
    """Return a response's correlation id; raise RemoteProtocolError for fewer than four bytes."""
    if len(frame) < 4:
        raise RemoteProtocolError(f"A response of {len(frame)} bytes is too short for a correlation id.")
    return int.from_bytes(frame[:4], "big", signed=True)


def _decode(cls: Any, frame: bytes, version: int) -> Any:
    # kafka-python reads an unsigned varint of any length in quadratic time: 300 kB of 0xff take 3 s.  No valid
    # response has so many such bytes in a row.
    if ENDLESS_VARINT.search(frame):
        raise RemoteProtocolError(f"The broker's {cls.name} holds a number that does not end.")
    return cls.decode(frame, version=version, header=True)


def decode_api_versions(frame: bytes, version: int) -> ApiVersions:
    """Decode an ApiVersions response; after an error only the code, since brokers differ in the rest."""
    what = "The broker's list of API versions"
    with _refusing(what, RemoteProtocolError):
        _, error = RESPONSE_HEAD.unpack_from(frame)
        if error != 0:
            return ApiVersions(error, {})
        response = _decode(_METADATA.ApiVersionsResponse, frame, version)
        return ApiVersions(0, {api.api_key: ApiRange(api.min_version, api.max_version) for api in response.api_keys})


def decode_producer_id(frame: bytes, version: int) -> ProducerIdResponse:
    """Decode a response; raise RemoteProtocolError for malformed bytes and a negative id without an error."""
    with _refusing("The broker's answer with a producer id", RemoteProtocolError):
        got = _decode(_PRODUCER.InitProducerIdResponse, frame, version)
    if got.error_code != 0:
        return ProducerIdResponse(got.error_code, -1, -1, got.throttle_time_ms)
    if got.producer_id < 0 or got.producer_epoch < 0:
        raise RemoteProtocolError(f"The broker gave us producer id {got.producer_id} epoch {got.producer_epoch}.")
    return ProducerIdResponse(0, got.producer_id, got.producer_epoch, got.throttle_time_ms)


def decode_create_topics(frame: bytes, version: int) -> dict[bytes, int]:
    """Return the error code for each topic; raise RemoteProtocolError for malformed bytes."""
    with _refusing("The broker's answer to a request to make topics", RemoteProtocolError):
        response = _decode(messages("admin").CreateTopicsResponse, frame, version)
        return {topic.name.encode(): topic.error_code for topic in response.topics}


def decode_sasl_handshake(frame: bytes, version: int) -> SaslHandshake:
    """Decode a SaslHandshake response; raise RemoteProtocolError for malformed bytes."""
    with _refusing("The broker's answer about logins", RemoteProtocolError):
        got = _decode(messages("sasl").SaslHandshakeResponse, frame, version)
        return SaslHandshake(got.error_code, tuple(got.mechanisms))


def decode_sasl_token(frame: bytes, version: int) -> SaslToken:
    """Decode a SaslAuthenticate response; raise RemoteProtocolError for malformed bytes."""
    with _refusing("The broker's answer to a login", RemoteProtocolError):
        got = _decode(messages("sasl").SaslAuthenticateResponse, frame, version)
        return SaslToken(got.error_code, got.error_message, bytes(got.auth_bytes), got.session_lifetime_ms)


# --- metadata ---------------------------------------------------------------------------------------------------------
def decode_metadata(frame: bytes, version: int) -> ClusterMetadata:
    """Decode metadata; raise RemoteProtocolError for malformed bytes, bad ids or ports, or no brokers.

    A partition without a usable leader stays in the result with NO_BROKER.  An outage must not change a topic's number
    of partitions, or messages with a partition key would move.
    """
    with _refusing("The broker's metadata", RemoteProtocolError):
        return _ClusterReader(_decode(_METADATA.MetadataResponse, frame, version)).read()


class _ClusterReader:
    """Builds ClusterMetadata from one response, and counts its corrections."""

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
        # Only a topic requested by id has no name, and requests here use names.
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
