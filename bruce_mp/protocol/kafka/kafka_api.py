"""Encode Kafka's requests and decode the responses; the only module that uses the package kafka-python.

kafka-python provides the schemas of Kafka's requests and responses; its networking stays unused.  This module hides the
weaknesses of kafka-python:

* Its classes are untyped.  The parameters and results of the functions here have types of `kafka_types`.
* It raises arbitrary Python errors for malformed input.  This module turns them into `RemoteProtocolError` for data of
  a broker, and into `LocalProtocolError` for arguments of a caller, and raises no other errors.
* It copies a produce request several times, and creates objects for each field of a response.  So `produce_request`
  and `produce_response` encode and decode Produce without kafka-python.

The encoders here return a whole frame: size, header, body.  The decoders take a frame without its size, so that it
begins with the correlation id.  Protocol: https://kafka.apache.org/protocol
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
def _load_schemas(group: str) -> Any:
    """Return the module `kafka.protocol.<group>`; the first call loads it, without the clients of kafka-python.

    A normal import of any module of `kafka` runs `kafka/__init__.py`, which loads producer, consumer and admin client
    with their networking: 6 MB in each process, all unused.  So this function registers the package `kafka` without
    running `kafka/__init__.py`.  That file runs only if other code in the process accesses a name of the package, such
    as `kafka.KafkaConsumer`.
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
        """Run the package's `__init__`, because a name was accessed that does not exist yet (PEP 562)."""
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = look_up
    sys.modules[_PACKAGE] = package


# The schemas that each connection needs.  The schemas of logins and of CreateTopics are loaded on demand.
_METADATA: Final = _load_schemas("metadata")
_PRODUCER: Final = _load_schemas("producer")

UNSUPPORTED_VERSION: Final = 35
CLIENT_SOFTWARE: Final = "bruce-mp"
API_VERSIONS_HEAD: Final = struct.Struct(">ih")
"""The first fields of an ApiVersions response: correlation id, error code."""

_NOT_REQUESTED: Final = 31
"""The code in `authorized_operations` that means that the request did not ask for the operations."""

ENDLESS_VARINT: Final = re.compile(rb"[\x80-\xff]{4096}")  # each byte >= 0x80 continues a varint

K = TypeVar("K")
V = TypeVar("V")

KAFKA_PYTHON_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    struct.error,
)
"""The errors that kafka-python raises for bytes or values that do not fit a schema."""


@contextmanager
def _converting_errors(error: type[LocalProtocolError | RemoteProtocolError], subject: str) -> Iterator[None]:
    """Raise `error` instead of an error of kafka-python; the text of `error` begins with `subject`."""
    try:
        yield
    except KAFKA_PYTHON_ERRORS as failure:
        raise error(f"{subject} does not follow the protocol.") from failure


# --- requests ---------------------------------------------------------------------------------------------------------
def _encode(request_type: Any, version: int, correlation_id: int, client_id: str, **fields: Any) -> bytes:
    with _converting_errors(LocalProtocolError, f"The {request_type.name} v{version} to send"):
        request = request_type[version](**fields)
    with _converting_errors(LocalProtocolError, f"The {request.name} to send"):
        request.with_header(correlation_id=correlation_id, client_id=client_id or None)
        return bytes(request.encode(header=True, framed=True))


def encode_api_versions(version: int, correlation_id: int, client_id: str) -> bytes:
    """Encode an ApiVersions request; versions 3 and later contain the daemon's name and release."""
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

    In versions 4 and later, the broker creates missing topics only if `allow_auto_topic_creation` is True; in earlier
    versions, only the broker's configuration decides. In versions 8 and later, `with_operations` requests a list of the
    operations that the daemon's Kafka user may do on each topic. Raises LocalProtocolError for a name that is not
    UTF-8, and for an empty list in version 0, where it would mean all topics.
    """
    with _converting_errors(LocalProtocolError, "A topic name in a metadata request"):
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
    """Encode an InitProducerId request for a producer that uses no transactions."""
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
    """Encode a CreateTopics request.

    `partitions` and `replication` are the numbers of partitions and of replicas of each topic; in versions 4 and later,
    -1 means the broker's default. `timeout_ms` is the longest time that the broker may wait for the creation. Raises
    LocalProtocolError for a name that is not UTF-8.
    """
    with _converting_errors(LocalProtocolError, "A topic name in a CreateTopics request"):
        names = [str(topic, "utf-8") for topic in topics]
    request = _load_schemas("admin").CreateTopicsRequest
    wanted = [
        request.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication, assignments=[], configs=[]
        )
        for name in names
    ]
    return _encode(request, version, correlation_id, client_id, topics=wanted, timeout_ms=timeout_ms)


def encode_sasl_handshake(version: int, correlation_id: int, client_id: str, mechanism: str) -> bytes:
    return _encode(_load_schemas("sasl").SaslHandshakeRequest, version, correlation_id, client_id, mechanism=mechanism)


def encode_sasl_authenticate(version: int, correlation_id: int, client_id: str, token: bytes) -> bytes:
    """Encode one token of a login as a SaslAuthenticate request."""
    return _encode(_load_schemas("sasl").SaslAuthenticateRequest, version, correlation_id, client_id, auth_bytes=token)


# --- responses --------------------------------------------------------------------------------------------------------
def read_correlation_id(frame: bytes) -> int:
    """Return a response's correlation id; raise RemoteProtocolError for a frame of less than 4 bytes."""
    if len(frame) < 4:
        raise RemoteProtocolError(f"A response of {len(frame)} bytes is too short for a correlation id.")
    return int.from_bytes(frame[:4], "big", signed=True)


def _decode(response_type: Any, frame: bytes, version: int) -> Any:
    # kafka-python accepts an unsigned varint of any length, and needs quadratic time: 3 s for 300 kB of 0xff.
    # No valid response has 4096 bytes in a row that each continue a varint.
    if ENDLESS_VARINT.search(frame):
        raise RemoteProtocolError(f"The broker's {response_type.name} holds a number that does not end.")
    return response_type.decode(frame, version=version, header=True)


def decode_api_versions(frame: bytes, version: int) -> ApiVersions:
    """Decode an ApiVersions response.

    Of a response with an error, only the code is decoded, because brokers encode the rest in different ways.
    """
    with _converting_errors(RemoteProtocolError, "The broker's ApiVersions response"):
        _, error = API_VERSIONS_HEAD.unpack_from(frame)
        if error != 0:
            return ApiVersions(error, {})
        response = _decode(_METADATA.ApiVersionsResponse, frame, version)
        return ApiVersions(0, {api.api_key: ApiRange(api.min_version, api.max_version) for api in response.api_keys})


def decode_producer_id(frame: bytes, version: int) -> ProducerIdResponse:
    """Decode an InitProducerId response.

    Raises RemoteProtocolError for malformed bytes, and for a negative id or epoch in a response without an error code.
    """
    with _converting_errors(RemoteProtocolError, "The broker's InitProducerId response"):
        response = _decode(_PRODUCER.InitProducerIdResponse, frame, version)
    if response.error_code != 0:
        return ProducerIdResponse(response.error_code, -1, -1, response.throttle_time_ms)
    if response.producer_id < 0 or response.producer_epoch < 0:
        raise RemoteProtocolError(
            f"The broker assigned producer id {response.producer_id} epoch {response.producer_epoch}."
        )
    return ProducerIdResponse(0, response.producer_id, response.producer_epoch, response.throttle_time_ms)


def decode_create_topics(frame: bytes, version: int) -> dict[bytes, int]:
    """Return the error code of each topic in a CreateTopics response; raise RemoteProtocolError for malformed bytes."""
    with _converting_errors(RemoteProtocolError, "The broker's CreateTopics response"):
        response = _decode(_load_schemas("admin").CreateTopicsResponse, frame, version)
        return {topic.name.encode(): topic.error_code for topic in response.topics}


def decode_sasl_handshake(frame: bytes, version: int) -> SaslHandshakeResponse:
    """Decode a SaslHandshake response; raise RemoteProtocolError for malformed bytes."""
    with _converting_errors(RemoteProtocolError, "The broker's SaslHandshake response"):
        response = _decode(_load_schemas("sasl").SaslHandshakeResponse, frame, version)
        return SaslHandshakeResponse(response.error_code, tuple(response.mechanisms))


def decode_sasl_authenticate(frame: bytes, version: int) -> SaslAuthenticateResponse:
    """Decode a SaslAuthenticate response; raise RemoteProtocolError for malformed bytes."""
    with _converting_errors(RemoteProtocolError, "The broker's SaslAuthenticate response"):
        response = _decode(_load_schemas("sasl").SaslAuthenticateResponse, frame, version)
        return SaslAuthenticateResponse(
            response.error_code, response.error_message, bytes(response.auth_bytes), response.session_lifetime_ms
        )


# --- metadata ---------------------------------------------------------------------------------------------------------
_LEADER_EPOCH_VERSION: Final = 7
"""The first version of Metadata that has the leader epochs of partitions."""


def decode_metadata(frame: bytes, version: int) -> ClusterMetadata:
    """Decode a Metadata response.

    Raises RemoteProtocolError for malformed bytes, invalid ids or ports, and an empty list of brokers. A partition
    without a usable leader stays in the result, with the leader NO_BROKER: the number of a topic's partitions decides
    where a message with a partition key goes, so an outage must not change it.
    """
    with _converting_errors(RemoteProtocolError, "The broker's metadata"):
        response = _decode(_METADATA.MetadataResponse, frame, version)
        return _ClusterReader(response, has_leader_epochs=version >= _LEADER_EPOCH_VERSION).read()


class _ClusterReader:
    """Builder of ClusterMetadata from one response; it corrects harmless inconsistencies, and counts them."""

    def __init__(self, response: Any, *, has_leader_epochs: bool) -> None:
        self._response = response
        self._has_leader_epochs = has_leader_epochs
        self._brokers: dict[int, BrokerAddress] = {}
        self._unknown_leaders = 0
        self._duplicates = 0

    def read(self) -> ClusterMetadata:
        response = self._response
        self._brokers = self._without_duplicates(
            (node.node_id, broker_address(node.node_id, node.host, node.port, node.rack)) for node in response.brokers
        )
        if not self._brokers:
            raise RemoteProtocolError(
                "The broker's metadata lists no brokers. The broker may not have joined its cluster yet; "
                "Kafka 0.8 lists none until a topic exists."
            )
        # A topic has no name only if it was requested by id, which `encode_metadata` does not do.
        named = (topic for topic in response.topics if topic.name is not None)
        topics = self._without_duplicates((topic.name.encode(), self._read_topic(topic)) for topic in named)
        return ClusterMetadata(
            self._brokers,
            topics,
            response.controller_id,
            response.throttle_time_ms,
            self._unknown_leaders,
            self._duplicates,
            response.cluster_id or "",
        )

    def _without_duplicates(self, pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
        """Return the first value of each key, and count all further pairs in `_duplicates`."""
        found: dict[K, V] = {}
        for key, value in pairs:
            self._duplicates += key in found
            found.setdefault(key, value)
        return found

    def _read_topic(self, topic: Any) -> TopicMetadata:
        operations = _read_operations(topic.authorized_operations)
        topic_id = b"" if topic.topic_id is None else topic.topic_id.bytes
        return TopicMetadata(topic.error_code, self._read_partitions(topic.partitions), topic_id, operations)

    def _read_partitions(self, partitions: Iterable[Any]) -> dict[int, PartitionMetadata]:
        """Read the partitions of a topic in one loop, because a cluster may have tens of thousands."""
        found: dict[int, PartitionMetadata] = {}
        brokers, has_leader_epochs = self._brokers, self._has_leader_epochs
        for each in partitions:
            index, leader = each.partition_index, each.leader_id
            if index < 0 or leader < NO_BROKER:
                raise RemoteProtocolError(f"The broker's metadata names partition {index} with leader {leader}.")
            if leader != NO_BROKER and leader not in brokers:
                self._unknown_leaders += 1
                leader = NO_BROKER
            if index in found:
                self._duplicates += 1
                continue
            # Without the check of the version, kafka-python would search its schema for the default of the field.
            found[index] = PartitionMetadata(each.error_code, leader, each.leader_epoch if has_leader_epochs else -1)
        return found


def _read_operations(codes: set[int] | None) -> frozenset[int] | None:
    """Return the codes of the allowed operations; None if the response omits them, as versions before 8 do."""
    return None if codes is None or _NOT_REQUESTED in codes else frozenset(codes)
