"""Produce requests: for every version the bytes of kafka-python, without a copy of the batch."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.producer import ProduceRequest

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.produce_request import FIRST_VERSION, LAST_VERSION, encode_produce
from support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSIONS = range(FIRST_VERSION, LAST_VERSION + 1)
Topic = ProduceRequest.TopicProduceData
Partition = Topic.PartitionProduceData

TOPICS = st.text("abc.-_", min_size=1, max_size=200).map(str.encode)
# Sorted by topic, for kafka-python takes topics as we group them; one partition only once.
DATA = st.dictionaries(
    st.tuples(TOPICS, st.integers(0, 2**31 - 1)), st.binary(min_size=1, max_size=20_000), min_size=1, max_size=6
).map(lambda found: [PartitionData(*key, found[key]) for key in sorted(found)])


def encoded_by_kafka_python(
    version: int, correlation_id: int, client_id: str | None, data: Sequence[PartitionData]
) -> bytes:
    topics = [
        Topic(name=name.decode(), partition_data=[Partition(index=one.partition, records=one.records) for one in group])
        for name, group in groupby(data, key=lambda one: one.topic)
    ]
    request = ProduceRequest[version](transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=topics)
    request.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


@given(version=st.sampled_from(VERSIONS), number=st.integers(0, 2**31 - 1), client=st.text(max_size=30), data=DATA)
@examples(50)
def test_encode_produce_equals_kafka_python(version: int, number: int, client: str, data: list[PartitionData]) -> None:
    ours = b"".join(encode_produce(version, number, client, data, acks=-1, timeout_ms=10_000))
    assert ours == encoded_by_kafka_python(version, number, client or None, data)


@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_decodes_a_produce_request(version: int) -> None:
    data = [PartitionData(b"a", 1, b"one"), PartitionData(b"b", 0, b"two" * 100), PartitionData(b"a", 0, b"three")]
    frame = b"".join(encode_produce(version, 77, "bruce", data, acks=1, timeout_ms=99))
    decoded = ProduceRequest.decode(frame, version=version, header=True, framed=True)
    assert isinstance(decoded.header, RequestHeader)
    assert (decoded.header.request_api_key, decoded.header.request_api_version) == (0, version)
    assert (decoded.header.correlation_id, decoded.header.client_id) == (77, "bruce")
    assert (decoded.transactional_id, decoded.acks, decoded.timeout_ms) == (None, 1, 99)
    found = {topic.name: [(one.index, one.records) for one in topic.partition_data] for topic in decoded.topic_data}
    assert found == {"a": [(1, b"one"), (0, b"three")], "b": [(0, b"two" * 100)]}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_produce_request_references_the_records_without_copying(version: int) -> None:
    data = [PartitionData(b"topic", number, bytes([number]) * 100_000) for number in range(20)]
    pieces = encode_produce(version, 1, "bruce", data, acks=-1, timeout_ms=1)
    assert [piece for piece in pieces if len(piece) >= 100_000] == [one.records for one in data]
    assert all(any(piece is one.records for piece in pieces) for one in data)
    assert len(pieces) <= 2 * len(data) + 1
    assert sum(map(len, pieces)) - 20 * 100_000 < 500


def test_small_records_are_joined_into_one_piece() -> None:
    large = b"l" * 50_000
    data = [PartitionData(b"topic", number, large if number == 7 else b"s" * 900) for number in range(20)]
    pieces = encode_produce(9, 1, "bruce", data, acks=-1, timeout_ms=10_000)
    assert len(pieces) == 3
    assert pieces[1] is large
    assert b"".join(pieces) == encoded_by_kafka_python(9, 1, "bruce", data)


@pytest.mark.parametrize("version", [-1, 13, 14])
def test_unsupported_versions_are_refused(version: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"v{version}"):
        encode_produce(version, 1, "bruce", [PartitionData(b"t", 0, b"r")], acks=-1, timeout_ms=1)


@pytest.mark.parametrize("acks", [-2, 2, 3])
def test_unknown_acks_are_refused(acks: int) -> None:
    with pytest.raises(LocalProtocolError, match="acks"):
        encode_produce(9, 1, "bruce", [PartitionData(b"t", 0, b"r")], acks=acks, timeout_ms=1)


def test_a_repeated_partition_is_refused() -> None:
    data = [PartitionData(b"t", 0, b"r"), PartitionData(b"u", 0, b"r"), PartitionData(b"t", 0, b"s")]
    with pytest.raises(LocalProtocolError, match="twice"):
        encode_produce(9, 1, "bruce", data, acks=-1, timeout_ms=1)


@pytest.mark.parametrize("version", [0, 3, 9])
@pytest.mark.parametrize(("partition", "timeout_ms"), [(2**31, 1), (0, 2**31), (-(2**31) - 1, 1)])
def test_out_of_range_numbers_are_refused(version: int, partition: int, timeout_ms: int) -> None:
    with pytest.raises(LocalProtocolError, match="does not fit"):
        encode_produce(version, 1, "bruce", [PartitionData(b"t", partition, b"r")], acks=-1, timeout_ms=timeout_ms)
