"""Produce responses that accept all batches: which responses the fast reader reads, and which it leaves."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceResponse

from bruce_mp.kernels import read_accepted
from bruce_mp.protocol.kafka.produce_response import decode_produce
from support.examples import examples

VERSIONS: Final = range(9, 13)
Topic = ProduceResponse.TopicProduceResponse
Ack = Topic.PartitionProduceResponse
LONG: Final = "x" * 249  # the size of this name takes two bytes
PLACES: Final = [("news", 3), (LONG, 0), ("news", 0), ("größe", 2**31 - 1)]

Place = tuple[str, int]


def encoded(version: int, places: list[Place], *, throttle_ms: int = 0, endpoints: int = 0, **fields: Any) -> bytes:
    """A response without errors, or with these fields in the last partition."""
    partitions: dict[str, list[Any]] = {}
    for place in places:
        changed = fields if place == places[-1] else {}
        values = {"error_code": 0, "base_offset": 1 << 40, "log_append_time_ms": 7, "log_start_offset": 5} | changed
        partitions.setdefault(place[0], []).append(Ack(index=place[1], **values))
    made = ProduceResponse[version](
        responses=[Topic(name=name, partition_responses=acks) for name, acks in partitions.items()],
        throttle_time_ms=throttle_ms,
        node_endpoints=[ProduceResponse.NodeEndpoint(node_id=2, host="b2", port=9094, rack=None)] * endpoints,
    )
    made.with_header(correlation_id=5)
    return bytes(made.encode(header=True))


def read(frame: bytes, version: int, places: list[Place]) -> int | None:
    """Read a response to a request for these partitions."""
    return read_accepted(frame, version, [name.encode() for name, _ in places], [index for _, index in places])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_acceptance_of_all_batches_is_read_in_any_order(version: int) -> None:
    frame = encoded(version, PLACES, throttle_ms=30)
    assert read(frame, version, PLACES) == read(frame, version, PLACES[::-1]) == 30
    assert read(encoded(version, []), version, []) == 0


@given(places=st.sets(st.tuples(st.text(max_size=3), st.integers(0, 3)), min_size=1, max_size=300).map(list))
@examples(20)
def test_any_partitions_are_matched(places: list[Place]) -> None:
    frame = encoded(12, places)
    assert read(frame, 12, places[::-1]) == 0
    assert read(frame, 12, [*places[1:], ("other", 0)]) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"error_code": 6},
        {"error_code": 256},
        {"error_code": -1},
        {"error_message": "refused", "error_code": 87},
        {"record_errors": [Ack.BatchIndexAndErrorMessage(batch_index=1)], "error_code": 87},
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_is_left_to_the_decoder(version: int, fields: dict[str, Any]) -> None:
    assert read(encoded(version, PLACES, **fields), version, PLACES) is None


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        *((version, {"error_message": "accepted"}) for version in VERSIONS),
        *((version, {"record_errors": [Ack.BatchIndexAndErrorMessage(batch_index=1)]}) for version in VERSIONS),
        *((version, {"endpoints": 2}) for version in VERSIONS[1:]),
    ],
)
def test_an_acceptance_with_optional_fields_is_read_whole_or_left_to_the_decoder(
    version: int, fields: dict[str, Any]
) -> None:
    frame = encoded(version, PLACES, throttle_ms=30, **fields)
    assert read(frame, version, PLACES) in {30, None}
    assert read(frame, version, PLACES[1:]) is None


@pytest.mark.parametrize(
    "requested",
    [
        PLACES[1:],  # the response names a partition that the request does not have
        [*PLACES, ("news", 1)],
        [*PLACES[:-1], ("große", 2**31 - 1)],
        [*PLACES[:-1], ("größe", 2**31 - 2)],
        [],
    ],
)
def test_another_set_of_partitions_is_left_to_the_decoder(requested: list[Place]) -> None:
    assert read(encoded(9, PLACES), 9, requested) is None


def test_a_repeated_partition_is_left_to_the_decoder() -> None:
    assert read(encoded(9, [("t", 0), ("t", 0)]), 9, [("t", 0), ("u", 0)]) is None
    assert read(encoded(9, [("t", 0), ("t", 0)]), 9, [("t", 0), ("t", 0)]) is None


def test_versions_before_9_are_left_to_the_decoder() -> None:
    assert [version for version in range(13) if read(encoded(version, PLACES), version, PLACES) is not None] == [
        *VERSIONS
    ]


def test_a_truncated_response_is_left_to_the_decoder() -> None:
    frame = encoded(12, PLACES)
    assert [read(frame[:size], 12, PLACES) for size in range(len(frame))] == [None] * len(frame)
    assert read(frame + b"more", 12, PLACES) == 0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=3))
@examples(300)
def test_damaged_bytes_are_accepted_only_if_the_decoder_finds_the_same(changes: list[tuple[int, int]]) -> None:
    frame = bytearray(encoded(12, PLACES))
    for at, byte in changes:
        frame[at % len(frame)] = byte
    found = read(bytes(frame), 12, PLACES)
    if found is not None:
        response = decode_produce(bytes(frame), 12)
        assert {(ack.topic.decode(), ack.partition, ack.error) for ack in response.acks} == {(*p, 0) for p in PLACES}
        assert (len(response.acks), response.throttle_ms) == (len(PLACES), found)
