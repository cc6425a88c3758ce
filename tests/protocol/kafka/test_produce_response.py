"""Produce responses: the output of kafka-python is read in every version, and bad bytes are the broker's fault."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from bruce_mp.errors import RemoteProtocolError
from bruce_mp.protocol.kafka.kafka_types import NO_BROKER, BrokerAddress, PartitionAck
from bruce_mp.protocol.kafka.produce_request import FIRST_VERSION, LAST_VERSION
from bruce_mp.protocol.kafka.produce_response import decode_produce
from support.examples import examples

VERSIONS: Final = range(FIRST_VERSION, LAST_VERSION + 1)
TIME_FROM, ERRORS_FROM, FLEXIBLE_FROM, HINTS_FROM = 2, 8, 9, 10

Topic = ProduceResponse.TopicProduceResponse
Ack = Topic.PartitionProduceResponse
RecordError = Ack.BatchIndexAndErrorMessage
Leader = Ack.LeaderIdAndEpoch
Endpoint = ProduceResponse.NodeEndpoint


def encoded(version: int, topics: list[Any], throttle_ms: int = 0, endpoints: list[Any] | None = None) -> bytes:
    """A response as a broker sends it, without its size."""
    made = ProduceResponse[version](
        responses=topics,
        throttle_time_ms=throttle_ms,
        node_endpoints=endpoints if endpoints and version >= HINTS_FROM else [],
    )
    made.with_header(correlation_id=5)
    return bytes(made.encode(header=True))


def good(index: int, base_offset: int = 0) -> Any:
    return Ack(
        index=index,
        error_code=0,
        base_offset=base_offset,
        log_append_time_ms=-1,
        log_start_offset=7,
        record_errors=[],
        error_message=None,
    )


def bad() -> Any:
    return Ack(
        index=1,
        error_code=6,
        base_offset=-1,
        log_append_time_ms=99,
        log_start_offset=-1,
        record_errors=[
            RecordError(batch_index=4, batch_index_error_message="no kéy"),
            RecordError(batch_index=5, batch_index_error_message=None),
        ],
        error_message="bad records",
        current_leader=Leader(leader_id=2, leader_epoch=12),
    )


def everything(version: int) -> bytes:
    topics = [Topic(name="t", partition_responses=[good(0), bad(), good(2)]), Topic(name="u", partition_responses=[])]
    return encoded(version, topics, 3, [Endpoint(node_id=2, host="b2", port=9094, rack=None)])


# --- content ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", VERSIONS)
def test_successful_acks_are_read(version: int) -> None:
    topics = [
        Topic(name="t", partition_responses=[good(3, 30), good(0, 1 << 40)]),
        Topic(name="größe", partition_responses=[good(0)]),
    ]
    got = decode_produce(encoded(version, topics, 8), version)
    places = (PartitionAck(b"t", 3, 0, 30), PartitionAck(b"t", 0, 0, 1 << 40), PartitionAck("größe".encode(), 0, 0, 0))
    assert got.acks == places
    assert (got.throttle_ms, got.endpoints) == (8 if version else 0, {})


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_ack_is_read_and_later_acks_follow(version: int) -> None:
    got = decode_produce(everything(version), version)
    first, ack, last = got.acks
    assert (first, last) == (PartitionAck(b"t", 0, 0, 0), PartitionAck(b"t", 2, 0, 0))
    assert (ack.partition, ack.error, ack.base_offset) == (1, 6, -1)
    assert ack.log_append_ms == (99 if version >= TIME_FROM else -1)
    has_errors = version >= ERRORS_FROM
    assert ack.record_errors == (((4, "no kéy"), (5, None)) if has_errors else ())
    assert ack.error_message == ("bad records" if has_errors else None)
    assert (ack.leader, ack.leader_epoch) == ((2, 12) if version >= HINTS_FROM else (NO_BROKER, -1))
    assert got.endpoints == ({2: BrokerAddress("b2", 9094)} if version >= HINTS_FROM else {})
    assert got.throttle_ms == (3 if version else 0)


texts = st.none() | st.text(max_size=200)
numbers = st.integers(-(2**31), 2**31 - 1)
offsets = st.integers(-(2**63), 2**63 - 1)
acks = st.builds(
    Ack,
    index=numbers,
    error_code=st.integers(-(2**15), 2**15 - 1),
    base_offset=offsets,
    log_append_time_ms=offsets,
    log_start_offset=offsets,
    record_errors=st.lists(st.builds(RecordError, batch_index=numbers, batch_index_error_message=texts), max_size=3),
    error_message=texts,
    current_leader=st.none() | st.builds(Leader, leader_id=numbers, leader_epoch=numbers),
)
topics = st.builds(Topic, name=st.text(max_size=200), partition_responses=st.lists(acks, max_size=5))


@examples(50)
@given(version=st.sampled_from(VERSIONS), sent=st.lists(topics, max_size=4), throttle_ms=numbers)
def test_decode_produce_equals_kafka_python(version: int, sent: list[Any], throttle_ms: int) -> None:
    frame = encoded(version, sent, throttle_ms)
    theirs = ProduceResponse.decode(frame, version=version, header=True)
    ours = decode_produce(frame, version)
    assert ours.throttle_ms == theirs.throttle_time_ms
    assert list(ours.acks) == [
        as_ours(topic.name, ack) for topic in theirs.responses for ack in topic.partition_responses
    ]


def as_ours(topic: str, ack: Any) -> PartitionAck:
    """Return kafka-python's reading; fields that a version lacks have their defaults."""
    leader = ack.current_leader
    return PartitionAck(
        topic.encode(),
        ack.index,
        ack.error_code,
        ack.base_offset,
        ack.log_append_time_ms,
        tuple((error.batch_index, error.batch_index_error_message) for error in ack.record_errors),
        ack.error_message,
        NO_BROKER if leader is None else leader.leader_id,
        -1 if leader is None else leader.leader_epoch,
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name_size", "partitions"), [(126, 126), (127, 126), (126, 127), (249, 300)])
def test_lengths_of_one_and_two_bytes_are_read(version: int, name_size: int, partitions: int) -> None:
    sent = [Topic(name="n" * name_size, partition_responses=[good(index) for index in range(partitions)])] * 2
    got = decode_produce(encoded(version, sent), version).acks
    assert [(ack.topic, ack.partition) for ack in got] == [(b"n" * name_size, at) for at in range(partitions)] * 2


# --- tags -------------------------------------------------------------------------------------------------------------
TAG: Final = b"\x01\x81\x01\x02hi"  # one tag, number 129, 2 bytes


@pytest.mark.parametrize("version", range(FLEXIBLE_FROM, LAST_VERSION + 1))
def test_unknown_tags_are_skipped(version: int) -> None:
    """In the header, behind a partition, behind a topic, at the end."""
    frame = encoded(version, [Topic(name="t", partition_responses=[good(1, 10)])], 8)
    assert frame[-7:] == b"\0\0" + b"\0\0\0\x08" + b"\0"
    tagged = frame[:4] + TAG + frame[5:-7] + TAG + TAG + b"\0\0\0\x08" + TAG
    got = decode_produce(tagged, version)
    assert got.acks == (PartitionAck(b"t", 1, 0, 10),)
    assert got.throttle_ms == 8


# --- bad bytes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", VERSIONS)
def test_a_truncated_response_is_refused(version: int) -> None:
    frame = everything(version)
    decode_produce(frame, version)
    for size in range(len(frame)):
        with pytest.raises(RemoteProtocolError, match="does not follow the protocol"):
            decode_produce(frame[:size], version)


@pytest.mark.parametrize("version", [0, 12])
def test_a_topic_without_a_name_is_refused(version: int) -> None:
    with pytest.raises(RemoteProtocolError, match="-1 bytes"):
        decode_produce(encoded(version, [Topic(name=None, partition_responses=[good(0)])]), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_arrays_that_are_null_are_empty(version: int) -> None:
    null = b"\0" if version >= FLEXIBLE_FROM else b"\xff\xff\xff\xff"
    tags = b"\0" if version >= FLEXIBLE_FROM else b""
    assert decode_produce(bytes(4) + tags + null + bytes(4) + tags, version).acks == ()


def test_an_endless_varint_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="does not end"):
        decode_produce(b"\0\0\0\x05\0" + b"\xff" * 300_000, 12)


@pytest.mark.parametrize(("node", "host", "port"), [(-1, "b", 1), (1, "", 1), (1, "b", 0), (1, "b", 65536)])
def test_an_invalid_broker_address_is_refused(node: int, host: str, port: int) -> None:
    frame = encoded(12, [], 0, [Endpoint(node_id=node, host=host, port=port, rack=None)])
    with pytest.raises(RemoteProtocolError, match=f"broker {node}"):
        decode_produce(frame, 12)


@examples(100)
@given(
    version=st.sampled_from(VERSIONS), edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=6)
)
def test_mutations_are_refused_or_read(version: int, edits: list[tuple[int, int]]) -> None:
    mutated = bytearray(everything(version))
    for at, byte in edits:
        mutated[at % len(mutated)] = byte
    with suppress(RemoteProtocolError):
        decode_produce(bytes(mutated), version)
