"""The facade over kafka-python: its messages both ways in every version, and bad bytes never raise anything else."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from bruce_mp import __version__
from bruce_mp.errors import LocalProtocolError, RemoteProtocolError
from bruce_mp.protocol.kafka import kafka_api as api
from bruce_mp.protocol.kafka.kafka_types import (
    ApiRange,
    ApiVersions,
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    ProducerIdResponse,
    TopicMetadata,
)
from support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

METADATA_VERSIONS = range(13)
PRODUCER_ID_VERSIONS = range(6)

Broker = MetadataResponse.MetadataResponseBroker
Topic = MetadataResponse.MetadataResponseTopic
Partition = Topic.MetadataResponsePartition


def response(cls: Any, version: int, **fields: Any) -> bytes:
    """A response as a broker sends it, without its size."""
    made = cls[version](**fields)
    made.with_header(correlation_id=5)
    return bytes(made.encode(header=True))


# --- ApiVersions ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [0, 3])
def test_versions_request_names_client_and_software(version: int) -> None:
    frame = api.encode_api_versions(version, 9, "bruce")
    asked = ApiVersionsRequest.decode(frame, version=version, header=True, framed=True)
    assert (asked.header.correlation_id, asked.header.client_id) == (9, "bruce")
    assert asked.header.request_api_version == version
    if version == 3:
        assert (asked.client_software_name, asked.client_software_version) == ("bruce-mp", __version__)


@pytest.mark.parametrize("version", [0, 3])
def test_versions_response_lists_api_ranges(version: int) -> None:
    keys = [ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=key + 7) for key in (0, 3)]
    frame = response(ApiVersionsResponse, version, error_code=0, api_keys=keys)
    assert api.decode_api_versions(frame, version) == ApiVersions(0, {0: ApiRange(0, 7), 3: ApiRange(0, 10)})


@pytest.mark.parametrize("rest", [b"", b"\0\0\0\0", b"\xff" * 30, b"\x02\x00\x12\x00\x00\x00\x03\x00"])
def test_an_error_response_is_read_only_up_to_its_code(rest: bytes) -> None:
    assert api.decode_api_versions(b"\0\0\0\5\0\x23" + rest, 3) == ApiVersions(35, {})


# --- CreateTopics -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", range(8))
def test_create_topics_request_contains_topics_and_sizes(version: int) -> None:
    sizes = {"partitions": 6, "replication": 3, "timeout_ms": 5000}
    frame = api.encode_create_topics(version, 9, "bruce", [b"a", "größe".encode()], **sizes)
    asked = CreateTopicsRequest.decode(frame, version=version, header=True, framed=True)
    assert asked.header.request_api_version == version
    assert [(topic.name, topic.num_partitions, topic.replication_factor) for topic in asked.topics] == [
        ("a", 6, 3),
        ("größe", 6, 3),
    ]
    assert (asked.timeout_ms, asked.validate_only) == (5000, False)


def test_a_topic_name_that_is_not_utf_8_cannot_be_created() -> None:
    with pytest.raises(LocalProtocolError, match="A topic name in a CreateTopics request"):
        api.encode_create_topics(4, 9, "bruce", [b"\xff"], partitions=-1, replication=-1, timeout_ms=1)


@pytest.mark.parametrize("version", range(8))
def test_create_topics_response_maps_topics_to_codes(version: int) -> None:
    topics = [
        CreateTopicsResponse.CreatableTopicResult(name=name, error_code=code) for name, code in (("a", 0), ("b", 36))
    ]
    frame = response(CreateTopicsResponse, version, topics=topics)
    assert api.decode_create_topics(frame, version) == {b"a": 0, b"b": 36}


@given(st.binary(max_size=60), st.sampled_from([0, 2, 5, 7]))
def test_invalid_create_topics_bytes_raise_remote_protocol_error(data: bytes, version: int) -> None:
    with suppress(RemoteProtocolError):
        api.decode_create_topics(data, version)


# --- Metadata ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", METADATA_VERSIONS)
@pytest.mark.parametrize("topics", [None, [b"one", b"two"]])
def test_metadata_request_lists_topics(version: int, topics: list[bytes] | None) -> None:
    frame = api.encode_metadata(version, 4, "", topics)
    asked = MetadataRequest.decode(frame, version=version, header=True, framed=True)
    assert (asked.header.request_api_key, asked.header.client_id) == (3, None)
    if topics is None:
        assert asked.topics == ([] if version == 0 else None)
    else:
        assert [topic.name.encode() for topic in asked.topics] == topics
    assert asked.allow_auto_topic_creation is (version < 4)  # before 4 there is no such field: its default is shown


def test_metadata_request_can_allow_topic_creation() -> None:
    frame = api.encode_metadata(9, 4, "x", [b"new"], allow_auto_topic_creation=True)
    assert MetadataRequest.decode(frame, version=9, header=True, framed=True).allow_auto_topic_creation is True


def test_a_topic_name_that_is_not_text_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="topic name"):
        api.encode_metadata(9, 4, "x", [b"fine", b"\xff\xfe"])


def test_an_empty_topic_list_is_refused_in_version_0() -> None:
    with pytest.raises(LocalProtocolError, match="all of them"):
        api.encode_metadata(0, 4, "x", [])
    assert MetadataRequest.decode(api.encode_metadata(1, 4, "x", []), version=1, header=True, framed=True).topics == []


BROKERS = [Broker(node_id=1, host="b1", port=9092, rack="r"), Broker(node_id=2, host="b2", port=9093, rack=None)]


def partition(index: int, leader: int, error: int = 0, epoch: int = 7) -> Any:
    nodes: dict[str, list[int]] = {"replica_nodes": [1, 2], "isr_nodes": [1], "offline_replicas": []}
    return Partition(error_code=error, partition_index=index, leader_id=leader, leader_epoch=epoch, **nodes)


def topic(name: str | None, partitions: list[Any], error: int = 0) -> Any:
    return Topic(error_code=error, name=name, is_internal=False, partitions=partitions)


def metadata(version: int, topics: list[Any], brokers: list[Any] | None = None) -> bytes:
    listed = BROKERS if brokers is None else brokers
    fields: dict[str, Any] = {"throttle_time_ms": 3} if version >= 3 else {}
    fields |= {"controller_id": 2} if version >= 1 else {}
    return response(MetadataResponse, version, brokers=listed, topics=topics, **fields)


@pytest.mark.parametrize("version", METADATA_VERSIONS)
def test_metadata_response_lists_brokers_and_topics(version: int) -> None:
    topics = [topic("a", [partition(0, 1), partition(1, 2, error=9), partition(2, -1, error=5)]), topic("b", [], 3)]
    got = api.decode_metadata(metadata(version, topics), version)
    epoch = 7 if version >= 7 else -1
    assert got == ClusterMetadata(
        brokers={1: BrokerAddress("b1", 9092, "r" if version >= 1 else None), 2: BrokerAddress("b2", 9093)},
        topics={
            b"a": TopicMetadata(
                0,
                {
                    0: PartitionMetadata(0, 1, epoch),
                    1: PartitionMetadata(9, 2, epoch),
                    2: PartitionMetadata(5, -1, epoch),
                },
            ),
            b"b": TopicMetadata(3, {}),
        },
        controller=2 if version >= 1 else -1,
        throttle_ms=3 if version >= 3 else 0,
    )
    assert [one.is_available for one in got.topics[b"a"].partitions.values()] == [True, True, False]


def test_a_partition_with_an_unlisted_leader_stays_known() -> None:
    got = api.decode_metadata(metadata(9, [topic("a", [partition(0, 1), partition(1, 5)])]), 9)
    assert got.topics[b"a"].partitions[1] == PartitionMetadata(0, -1, 7)
    assert not got.topics[b"a"].partitions[1].is_available
    assert (got.unknown_leaders, got.duplicates) == (1, 0)


def test_the_first_of_duplicate_entries_counts() -> None:
    brokers = [*BROKERS, Broker(node_id=1, host="other", port=1)]
    topics = [topic("a", [partition(0, 1), partition(0, 2)]), topic("a", [])]
    got = api.decode_metadata(metadata(9, topics, brokers), 9)
    assert got.brokers[1].host == "b1"
    assert got.topics[b"a"].partitions == {0: PartitionMetadata(0, 1, 7)}
    assert got.duplicates == 3


def test_a_topic_without_a_name_is_left_out() -> None:
    assert api.decode_metadata(metadata(12, [topic(None, [], 100), topic("a", [])]), 12).topics.keys() == {b"a"}


@pytest.mark.parametrize(
    ("topics", "brokers", "complaint"),
    [
        ([], [], "lists no brokers"),
        ([topic("a", [partition(0, -2)])], BROKERS, "leader -2"),
        ([topic("a", [partition(-1, 1)])], BROKERS, "partition -1"),
        ([], [Broker(node_id=-1, host="b", port=1)], "broker -1"),
        ([], [Broker(node_id=1, host="", port=1)], "address ''"),
        ([], [Broker(node_id=1, host="b", port=0)], "port 0"),
        ([], [Broker(node_id=1, host="b", port=65536)], "port 65536"),
    ],
)
def test_inconsistent_metadata_is_refused(topics: list[Any], brokers: list[Any], complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        api.decode_metadata(metadata(9, topics, brokers), 9)


# --- InitProducerId ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", PRODUCER_ID_VERSIONS)
def test_producer_id_request_is_not_transactional(version: int) -> None:
    frame = api.encode_init_producer_id(version, 4, "bruce")
    asked = InitProducerIdRequest.decode(frame, version=version, header=True, framed=True)
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == (None, -1, -1)


@pytest.mark.parametrize("version", PRODUCER_ID_VERSIONS)
def test_producer_id_response_has_id_and_epoch(version: int) -> None:
    frame = response(
        InitProducerIdResponse, version, throttle_time_ms=1, error_code=0, producer_id=1 << 40, producer_epoch=2
    )
    assert api.decode_producer_id(frame, version) == ProducerIdResponse(0, 1 << 40, 2, 1)


def test_a_refused_producer_id_has_a_code_and_no_id() -> None:
    frame = response(InitProducerIdResponse, 4, throttle_time_ms=0, error_code=31, producer_id=5, producer_epoch=0)
    assert api.decode_producer_id(frame, 4) == ProducerIdResponse(31, -1, -1)


@pytest.mark.parametrize(("error", "again"), [(0, False), (14, True), (16, True), (31, False), (35, False)])
def test_retriable_producer_id_errors_ask_again(error: int, again: bool) -> None:
    assert ProducerIdResponse(error, -1, -1).is_retriable is again


def test_an_invalid_producer_id_is_refused() -> None:
    frame = response(InitProducerIdResponse, 4, throttle_time_ms=0, error_code=0, producer_id=-1, producer_epoch=0)
    with pytest.raises(RemoteProtocolError, match="producer id -1"):
        api.decode_producer_id(frame, 4)


# --- bad bytes --------------------------------------------------------------------------------------------------------
Decoder: TypeAlias = "Callable[[bytes, int], object]"
SOUND: list[tuple[Decoder, int, bytes]] = [
    *(
        (api.decode_metadata, v, metadata(v, [topic("abc", [partition(0, 1), partition(1, 2)])]))
        for v in (0, 5, 8, 9, 12)
    ),
    (
        api.decode_api_versions,
        3,
        response(
            ApiVersionsResponse,
            3,
            error_code=0,
            api_keys=[ApiVersionsResponse.ApiVersion(api_key=0, min_version=0, max_version=9)],
            finalized_features_epoch=4,
        ),
    ),
    (
        api.decode_producer_id,
        4,
        response(InitProducerIdResponse, 4, throttle_time_ms=0, error_code=0, producer_id=9, producer_epoch=0),
    ),
]


@pytest.mark.parametrize(("decode", "version", "frame"), SOUND)
def test_every_truncated_response_is_refused(decode: Decoder, version: int, frame: bytes) -> None:
    decode(frame, version)
    for size in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode(frame[:size], version)


@given(which=st.sampled_from(SOUND), edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=6))
@examples(200)
def test_mutations_are_refused_or_read(which: tuple[Decoder, int, bytes], edits: list[tuple[int, int]]) -> None:
    decode, version, frame = which
    mutated = bytearray(frame)
    for at, byte in edits:
        mutated[at % len(mutated)] = byte
    with suppress(RemoteProtocolError):
        decode(bytes(mutated), version)


@given(which=st.sampled_from(SOUND), data=st.binary(max_size=200))
@examples(100)
def test_random_bytes_are_refused_or_read(which: tuple[Decoder, int, bytes], data: bytes) -> None:
    with suppress(RemoteProtocolError):
        which[0](data, which[1])


@pytest.mark.parametrize("frame", [b"", b"\0\0\1"])
def test_a_response_without_a_correlation_id_is_refused(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="too short"):
        api.read_correlation_id(frame)


def test_an_array_that_claims_billions_is_refused_quickly() -> None:
    with pytest.raises(RemoteProtocolError):
        api.decode_metadata(b"\0\0\0\5" + b"\x7f\xff\xff\xff" + bytes(40), 1)


def test_an_endless_varint_is_refused_quickly() -> None:
    # Without a fence this takes minutes.
    with pytest.raises(RemoteProtocolError, match="does not end"):
        api.decode_metadata(b"\0\0\0\5\0" + bytes(4) + b"\xff" * 3_000_000, 9)


def test_invalid_arguments_raise_local_protocol_error() -> None:
    with pytest.raises(LocalProtocolError):
        api.encode_init_producer_id(99, 1, "bruce")
    with pytest.raises(LocalProtocolError):
        api.encode_init_producer_id(4, 1 << 40, "bruce")
