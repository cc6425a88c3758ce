"""Encode Kafka's requests and decode the responses; the only module that uses kafka-python.

kafka-python provides Apache's message schemas; its networking stays unused.  This module hides its weaknesses:

* Its classes are untyped; the functions here use only `kafka_types`.
* Malformed input makes it raise arbitrary Python errors.  They become `RemoteProtocolError` for a broker's data and
  `LocalProtocolError` for a caller's: no other error leaves this module.
* It copies a produce request several times, and creates objects for each field of a response.  So `produce_request`
  and `produce_response` handle Produce without it.

A request is a whole frame (size, header, body).  A response begins with its correlation id, without the size.
Protocol: https://kafka.apache.org/protocol
"""

from __future__ import annotations

import re
import struct
import sys
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bruce_mp import __version__
from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka.kafka_types import (
    NO_BROKER,
    ApiRange,
    ApiVersions,
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    ProducerIdResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
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
    "decode_sasl_authenticate",
    "decode_sasl_handshake",
    "encode_api_versions",
    "encode_create_topics",
    "encode_init_producer_id",
    "encode_metadata",
    "encode_sasl_authenticate",
    "encode_sasl_handshake",
    "read_correlation_id",
]

# --- kafka-python -----------------------------------------------------------------------------------------------------
_PACKAGE: Final = "kafka"


@cache
def _messages(group: str) -> Any:
    """Return the module `kafka.protocol.<group>`, and load it at the first call, without kafka-python's clients.

    An import of a part of `kafka` runs `kafka/__init__.py`, which loads producer, consumer and admin client with their
    networking: 6 MB in each process, all unused.  So this registers `kafka` as a package without running its
    `__init__`.  The first access to a name of the package runs it, so other code in the process can use
    `kafka.KafkaConsumer`.
    """
    if _PACKAGE not in sys.modules:
        _register_package()
    return import_module(f"{_PACKAGE}.protocol.{group}")


def _register_package() -> None:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("kafka-python is not installed", name=_PACKAGE)
    package, loader = module_from_spec(spec), spec.loader

    def look_up(name: str) -> Any:
        """Run the package's `__init__` for a missing name (PEP 562)."""
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = look_up
    sys.modules[_PACKAGE] = package


_METADATA: Final = _messages("metadata")
_PRODUCER: Final = _messages("producer")
"""The messages that each connection needs; logins and topic creation load theirs on demand."""

UNSUPPORTED_VERSION: Final = 35
CLIENT_SOFTWARE: Final = "bruce-mp"
RESPONSE_HEAD: Final = struct.Struct(">ih")  # correlation id, and the error code of an ApiVersions response

_NOT_REQUESTED: Final = 31
"""The only bit of `authorized_operations` that a broker sets if the request did not ask for them."""

ENDLESS_VARINT: Final = re.compile(rb"[\x80-\xff]{4096}")  # each of these bytes continues a varint

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
def _raising(error: type[LocalProtocolError | RemoteProtocolError], subject: str) -> Iterator[None]:
    """Replace errors of kafka-python by `error`, whose text begins with `subject`."""
    try:
        yield
    except CODEC_FAILURES as failure:
        raise error(f"{subject} does not follow the protocol.") from failure


# --- requests ---------------------------------------------------------------------------------------------------------
def _encode(cls: Any, version: int, correlation_id: int, client_id: str, **fields: Any) -> bytes:
    with _raising(LocalProtocolError, f"The {cls.name} v{version} to send"):
        request = cls[version](**fields)
    with _raising(LocalProtocolError, f"The {request.name} to send"):
        request.with_header(correlation_id=correlation_id, client_id=client_id or None)
        return bytes(request.encode(header=True, framed=True))


def encode_api_versions(version: int, correlation_id: int, client_id: str) -> bytes:
    """Encode an ApiVersions request, from version 3 on with the client's name and release."""
    fields = {"client_software_name": CLIENT_SOFTWARE, "client_software_version": __version__} if version >= 3 else {}
    return _encode(_METADATA.ApiVersionsRequest, version, correlation_id, client_id, **fields)


def encode_metadata(
    version: int,
    correlation_id: int,
    client_id: str,
    topics: Sequence[bytes] | None = None,
    *,
    allow_auto_topic_creation: bool = False,
    with_operations: bool = False,
) -> bytes:
    """Encode a Metadata request, for all topics if `topics` is None.

    Before version 4 the broker ignores `allow_auto_topic_creation`; its own setting applies. With `with_operations`, a
    broker with version 8 or later lists the operations that the user may do on each topic.
    Raises LocalProtocolError for a name that is not UTF-8, and for an empty list before version 1, which would mean
    all topics.
    """
    with _raising(LocalProtocolError, "A topic name in a metadata request"):
        names = None if topics is None else [str(topic, "utf-8") for topic in topics]
    if version == 0 and names == []:
        raise LocalProtocolError("Metadata v0 cannot request no topics: an empty list requests all of them.")
    wanted = None if names is None else [_METADATA.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return _encode(
        _METADATA.MetadataRequest,
        version,
        correlation_id,
        client_id,
        topics=wanted,
        allow_auto_topic_creation=allow_auto_topic_creation,
        include_topic_authorized_operations=with_operations,
    )


def encode_init_producer_id(version: int, correlation_id: int, client_id: str) -> bytes:
    """Encode a request for a new producer id, without transactions."""
    fields = {"transactional_id": None, "transaction_timeout_ms": 0}
    return _encode(_PRODUCER.InitProducerIdRequest, version, correlation_id, client_id, **fields)


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
    """Encode a CreateTopics request; -1 partitions or replicas stands for the broker's default, from version 4 on.

    Raises LocalProtocolError for a name that is not UTF-8.
    """
    with _raising(LocalProtocolError, "A topic name in a CreateTopics request"):
        names = [str(topic, "utf-8") for topic in topics]
    request = _messages("admin").CreateTopicsRequest
    wanted = [
        request.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication, assignments=[], configs=[]
        )
        for name in names
    ]
    return _encode(request, version, correlation_id, client_id, topics=wanted, timeout_ms=timeout_ms)


def encode_sasl_handshake(version: int, correlation_id: int, client_id: str, mechanism: str) -> bytes:
    return _encode(_messages("sasl").SaslHandshakeRequest, version, correlation_id, client_id, mechanism=mechanism)


def encode_sasl_authenticate(version: int, correlation_id: int, client_id: str, token: bytes) -> bytes:
    """Encode one token of a login as a SaslAuthenticate request."""
    return _encode(_messages("sasl").SaslAuthenticateRequest, version, correlation_id, client_id, auth_bytes=token)


# --- responses --------------------------------------------------------------------------------------------------------
def read_correlation_id(frame: bytes) -> int:
    """Return a response's correlation id; raise RemoteProtocolError for a frame of less than 4 bytes."""
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
    """Decode an ApiVersions response; after an error only its code, because brokers differ in the rest."""
    with _raising(RemoteProtocolError, "The broker's ApiVersions response"):
        _, error = RESPONSE_HEAD.unpack_from(frame)
        if error != 0:
            return ApiVersions(error, {})
        response = _decode(_METADATA.ApiVersionsResponse, frame, version)
        return ApiVersions(0, {api.api_key: ApiRange(api.min_version, api.max_version) for api in response.api_keys})


def decode_producer_id(frame: bytes, version: int) -> ProducerIdResponse:
    """Decode an InitProducerId response.

    Raises RemoteProtocolError for malformed bytes, and for a negative id without an error.
    """
    with _raising(RemoteProtocolError, "The broker's InitProducerId response"):
        response = _decode(_PRODUCER.InitProducerIdResponse, frame, version)
    if response.error_code != 0:
        return ProducerIdResponse(response.error_code, -1, -1, response.throttle_time_ms)
    if response.producer_id < 0 or response.producer_epoch < 0:
        raise RemoteProtocolError(
            f"The broker assigned producer id {response.producer_id} epoch {response.producer_epoch}."
        )
    return ProducerIdResponse(0, response.producer_id, response.producer_epoch, response.throttle_time_ms)


def decode_create_topics(frame: bytes, version: int) -> dict[bytes, int]:
    """Decode a CreateTopics response to the error code of each topic; raise RemoteProtocolError for malformed bytes."""
    with _raising(RemoteProtocolError, "The broker's CreateTopics response"):
        response = _decode(_messages("admin").CreateTopicsResponse, frame, version)
        return {topic.name.encode(): topic.error_code for topic in response.topics}


def decode_sasl_handshake(frame: bytes, version: int) -> SaslHandshakeResponse:
    """Decode a SaslHandshake response; raise RemoteProtocolError for malformed bytes."""
    with _raising(RemoteProtocolError, "The broker's SaslHandshake response"):
        response = _decode(_messages("sasl").SaslHandshakeResponse, frame, version)
        return SaslHandshakeResponse(response.error_code, tuple(response.mechanisms))


def decode_sasl_authenticate(frame: bytes, version: int) -> SaslAuthenticateResponse:
    """Decode a SaslAuthenticate response; raise RemoteProtocolError for malformed bytes."""
    with _raising(RemoteProtocolError, "The broker's SaslAuthenticate response"):
        response = _decode(_messages("sasl").SaslAuthenticateResponse, frame, version)
        return SaslAuthenticateResponse(
            response.error_code, response.error_message, bytes(response.auth_bytes), response.session_lifetime_ms
        )


# --- metadata ---------------------------------------------------------------------------------------------------------
def decode_metadata(frame: bytes, version: int) -> ClusterMetadata:
    """Decode metadata; raise RemoteProtocolError for malformed bytes, invalid ids or ports, or no brokers.

    A partition without a usable leader stays in the result with NO_BROKER, because messages with a partition key would
    move if an outage changed a topic's number of partitions.
    """
    with _raising(RemoteProtocolError, "The broker's metadata"):
        return _ClusterReader(_decode(_METADATA.MetadataResponse, frame, version)).read()


class _ClusterReader:
    """Build ClusterMetadata from one response, and count the corrections."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._brokers: dict[int, BrokerAddress] = {}
        self._unknown_leaders = 0
        self._duplicates = 0

    def read(self) -> ClusterMetadata:
        response = self._response
        self._brokers = self._drop_duplicates(
            (node.node_id, broker_address(node.node_id, node.host, node.port, node.rack)) for node in response.brokers
        )
        if not self._brokers:
            raise RemoteProtocolError(
                "The broker's metadata lists no brokers. The broker may not have joined its cluster yet; "
                "Kafka 0.8 lists none until a topic exists."
            )
        # Only a topic requested by id has no name, and requests here use names.
        named = (topic for topic in response.topics if topic.name is not None)
        topics = self._drop_duplicates((topic.name.encode(), self._read_topic(topic)) for topic in named)
        return ClusterMetadata(
            self._brokers,
            topics,
            response.controller_id,
            response.throttle_time_ms,
            self._unknown_leaders,
            self._duplicates,
            response.cluster_id or "",
        )

    def _drop_duplicates(self, pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
        """Keep the first value of each key, and count the others."""
        found: dict[K, V] = {}
        for key, value in pairs:
            self._duplicates += key in found
            found.setdefault(key, value)
        return found

    def _read_topic(self, topic: Any) -> TopicMetadata:
        partitions = ((each.partition_index, self._read_partition(each)) for each in topic.partitions)
        operations = _read_operations(topic.authorized_operations)
        topic_id = b"" if topic.topic_id is None else topic.topic_id.bytes
        return TopicMetadata(topic.error_code, self._drop_duplicates(partitions), topic_id, operations)

    def _read_partition(self, partition: Any) -> PartitionMetadata:
        if partition.partition_index < 0 or partition.leader_id < NO_BROKER:
            raise RemoteProtocolError(
                f"The broker's metadata names partition {partition.partition_index} with leader {partition.leader_id}."
            )
        leader = partition.leader_id
        if leader != NO_BROKER and leader not in self._brokers:
            self._unknown_leaders += 1
            leader = NO_BROKER
        return PartitionMetadata(partition.error_code, leader, partition.leader_epoch)


def _read_operations(codes: set[int] | None) -> frozenset[int] | None:
    """Return the codes of the allowed operations; None if the response omits them, as before version 8."""
    return None if codes is None or _NOT_REQUESTED in codes else frozenset(codes)
