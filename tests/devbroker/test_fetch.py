"""Fetch and ListOffsets, fed with encoded requests."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.producer import ProduceResponse

from bruce_mp.devbroker.apis import fetch
from bruce_mp.devbroker.codes import Code
from bruce_mp.devbroker.control import decode_batches
from devbroker.kit import Desk, make_batch, produce

FetchTopic = FetchRequest.FetchTopic
OffsetsTopic = ListOffsetsRequest.ListOffsetsTopic


@pytest.fixture
def desk() -> Desk:
    """Two partitions of three batches of four records, with timestamps from 1000, 2000 and 3000."""
    made = Desk()
    made.cluster.add_topic("hits", 2)
    for number in range(1, 4):
        batch = make_batch(4, timestamp=1000 * number)
        made.ask(produce([("hits", 0, batch), ("hits", 1, batch)]), ProduceResponse)
    return made


def request(version: int = 12, *, offset: int = 0, epoch: int = -1, **fields: Any) -> Any:
    limit = fields.pop("partition_max_bytes", 1 << 20)
    fields = {"max_bytes": 1 << 20, "max_wait_ms": 500, "min_bytes": 1, "session_id": 0} | fields
    parts = [
        FetchTopic.FetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=limit, current_leader_epoch=epoch
        )
        for index in (0, 1)
    ]
    return FetchRequest(version=version, topics=[FetchTopic(topic="hits", partitions=parts)], **fields)


def parts_of(response: Any) -> list[Any]:
    return [part for topic in response.responses for part in topic.partitions]


def offsets_of(response: Any) -> list[list[int]]:
    return [[record.offset for record in decode_batches(bytes(part.records or b""))] for part in parts_of(response)]


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_returns_the_records(desk: Desk, version: int) -> None:
    response = desk.ask(request(version, offset=5), FetchResponse)
    assert offsets_of(response) == [list(range(4, 12))] * 2
    assert [part.high_watermark for part in parts_of(response)] == [12, 12]


def test_byte_limits_apply_except_to_the_first_batch(desk: Desk) -> None:
    size = len(make_batch(4))
    assert offsets_of(desk.ask(request(max_bytes=1), FetchResponse)) == [[0, 1, 2, 3], []]
    assert offsets_of(desk.ask(request(partition_max_bytes=1), FetchResponse)) == [[0, 1, 2, 3], []]
    assert offsets_of(desk.ask(request(max_bytes=4 * size), FetchResponse)) == [list(range(12)), [0, 1, 2, 3]]
    assert offsets_of(desk.ask(request(partition_max_bytes=size), FetchResponse)) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"offset": 13}, Code.OFFSET_OUT_OF_RANGE),
        ({"offset": -1}, Code.OFFSET_OUT_OF_RANGE),
        ({"epoch": 1}, Code.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_errors_are_returned_immediately_for_each_partition(desk: Desk, fields: dict[str, int], code: Code) -> None:
    asked = request(**fields)
    response = desk.ask(asked, FetchResponse)
    assert [part.error_code for part in parts_of(response)] == [code, code]
    assert fetch.is_sufficient(asked, response)


def test_sessions_are_declined(desk: Desk) -> None:
    response = desk.ask(request(session_id=5), FetchResponse)
    assert (response.error_code, response.session_id) == (Code.FETCH_SESSION_ID_NOT_FOUND, 0)


def test_a_fetch_is_complete_when_min_bytes_are_available(desk: Desk) -> None:
    at_end = request(offset=12, min_bytes=1)
    assert not fetch.is_sufficient(at_end, desk.ask(at_end, FetchResponse))
    hungry = request(min_bytes=1 << 20)
    assert not fetch.is_sufficient(hungry, desk.ask(hungry, FetchResponse))
    assert fetch.is_sufficient(request(), desk.ask(request(), FetchResponse))
    assert fetch.max_wait_s(at_end) == 0.5


def list_offset(desk: Desk, timestamp: int, version: int = 7) -> tuple[int, int]:
    parts = [OffsetsTopic.ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)]
    asked = ListOffsetsRequest(version=version, replica_id=-1, topics=[OffsetsTopic(name="hits", partitions=parts)])
    answer = desk.ask(asked, ListOffsetsResponse).topics[0].partitions[0]
    assert answer.error_code == Code.NONE
    return answer.offset, answer.timestamp


@pytest.mark.parametrize("version", range(1, 8))
def test_list_offsets_returns_the_first_and_the_last_offset(desk: Desk, version: int) -> None:
    desk.cluster.partition("hits", 0).log.drop_oldest(1)
    assert list_offset(desk, -2, version) == (4, -1)
    assert list_offset(desk, -1, version) == (12, -1)


def test_list_offsets_finds_offsets_by_timestamp(desk: Desk) -> None:
    assert list_offset(desk, 1500) == (4, 2000)
    assert list_offset(desk, 3003) == (11, 3003)
    assert list_offset(desk, 3004) == (-1, -1)
    assert list_offset(desk, -3) == (11, 3003)


def test_list_offsets_of_an_unknown_topic_is_an_error(desk: Desk) -> None:
    parts = [OffsetsTopic.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    asked = ListOffsetsRequest(version=2, replica_id=-1, topics=[OffsetsTopic(name="none", partitions=parts)])
    code = desk.ask(asked, ListOffsetsResponse).topics[0].partitions[0].error_code
    assert code == Code.UNKNOWN_TOPIC_OR_PARTITION
