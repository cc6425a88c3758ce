"""A real process and raw connections: each fault once, waits, silence, and restarts of brokers."""

from __future__ import annotations

import socket
import struct
import time
from functools import partial
from threading import Timer
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceResponse

from bruce_mp.devbroker.codes import ApiKey
from bruce_mp.devbroker.control import CommandError, DevBroker
from bruce_mp.devbroker.faults import GARBAGE_FRAME, Fault, FaultAction
from devbroker.kit import RawClient, frame_of, make_batch, produce

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process
VERSION = 9


@pytest.fixture(scope="module")
def process() -> Iterator[DevBroker]:
    with DevBroker(brokers=2) as started:
        yield started


@pytest.fixture
def broker(process: DevBroker) -> Iterator[DevBroker]:
    """Two brokers; topic "hits" has one partition, led by broker 1, and is empty."""
    process.add_topic("hits", 1)
    process.move_leader("hits", 0, 1)
    yield process
    process.clear_faults()
    process.delete_topic("hits")


@pytest.fixture
def client(broker: DevBroker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap.split(",")[0]) as connected:
        yield connected


def ask(client: RawClient, correlation_id: int = 7) -> Any:
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION), correlation_id)
    response = client.receive(ProduceResponse, VERSION)
    assert response.header.correlation_id == correlation_id
    return response.responses[0].partition_responses[0]


def stored(broker: DevBroker) -> int:
    return len(broker.fetch("hits")[0])


def closed_after(client: RawClient, sent: bytes) -> bool:
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    return client.rest() == sent


def test_error_fault_does_not_append(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.ERROR, code=19))
    assert (ask(client).error_code, stored(broker)) == (19, 0)
    assert (ask(client).error_code, stored(broker)) == (0, 2)


def test_error_appended_fault_appends(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.ERROR_APPENDED, code=7))
    assert (ask(client).error_code, stored(broker)) == (7, 2)


def test_ack_lost_fault_appends_and_closes(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.ACK_LOST))
    assert closed_after(client, b"")
    assert stored(broker) == 2


def test_close_fault_closes_without_appending(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.CLOSE))
    assert closed_after(client, b"")
    assert stored(broker) == 0


def test_half_frame_fault_sends_half_of_the_response(broker: DevBroker, client: RawClient) -> None:
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    whole = client.frame()
    broker.inject(Fault(action=FaultAction.HALF_FRAME))
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    half = client.rest()
    assert len(half) == len(whole) // 2
    assert half[:8] == whole[:8]
    assert stored(broker) == 4


def test_wrong_correlation_fault_changes_the_correlation_id(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.WRONG_CORRELATION))
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION), 7)
    assert client.receive(ProduceResponse, VERSION).header.correlation_id == 0x40000007
    assert ask(client).error_code == 0


def test_garbage_body_fault_keeps_the_header(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.GARBAGE_BODY))
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION), 7)
    frame = client.frame()
    assert struct.unpack_from(">i", frame, 4) == (7,)
    assert set(frame[8:]) == {0xFF}


def test_garbage_frame_fault_replaces_the_frame(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.GARBAGE_FRAME))
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    assert client.exactly(len(GARBAGE_FRAME)) == GARBAGE_FRAME


def test_delay_fault_appends_immediately_and_responds_late(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.DELAY, ms=60_000, nth=2))
    broker.inject(Fault(action=FaultAction.DELAY, ms=200, nth=1))
    started = time.monotonic()
    assert ask(client).error_code == 0
    assert time.monotonic() - started >= 0.2
    before = broker.statistics().records
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    broker.wait_until(records=before + 2)
    assert not client.readable()


def test_silence_ends_and_the_request_is_carried_out(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.SILENCE, ms=200))
    started = time.monotonic()
    assert (ask(client).error_code, stored(broker)) == (0, 2)
    assert time.monotonic() - started >= 0.2


def test_silence_stops_the_whole_broker_but_no_other(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.SILENCE, ms=60_000))
    faults = broker.statistics().faults.get("silence", 0)
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    broker.wait_until(faults={"silence": faults + 1})
    first, second = broker.bootstrap.split(",")
    with RawClient(first) as same, RawClient(second) as other:
        for each in (same, other):
            each.send(MetadataRequest(version=1, topics=[]))
        other.frame()
        assert not same.readable()
    assert not client.readable()
    assert stored(broker) == 0
    broker.broker_down(1)
    broker.broker_up(1)
    with RawClient(first) as again:
        assert ask(again).error_code == 0


def test_throttle_fault_sets_the_throttle_time(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.THROTTLE, ms=123))
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    assert client.receive(ProduceResponse, VERSION).throttle_time_ms == 123


def test_a_fault_can_select_another_api_and_broker(broker: DevBroker) -> None:
    broker.inject(Fault(action=FaultAction.CLOSE, api=ApiKey.METADATA, broker=2))
    first, second = broker.bootstrap.split(",")
    with RawClient(first) as one, RawClient(second) as two:
        for each in (one, two):
            each.send(MetadataRequest(version=1, topics=[]))
        one.frame()
        assert two.rest() == b""


def test_pipelined_requests_are_answered_in_order(broker: DevBroker, client: RawClient) -> None:
    request = produce([("hits", 0, make_batch(2))], version=VERSION)
    client.send_bytes(b"".join(frame_of(request, number) for number in range(20)))
    answers = [client.receive(ProduceResponse, VERSION) for _ in range(20)]
    assert [answer.header.correlation_id for answer in answers] == list(range(20))
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == list(range(0, 40, 2))


def test_an_unknown_version_of_api_versions_gets_error_35_in_the_oldest_shape(client: RawClient) -> None:
    frame = bytearray(frame_of(ApiVersionsRequest(version=4), 5))
    frame[6:8] = b"\0\x63"
    client.send_bytes(bytes(frame))
    answer = client.receive(ApiVersionsResponse, 0)
    assert (answer.header.correlation_id, answer.error_code) == (5, 35)
    assert [(a.api_key, a.min_version, a.max_version) for a in answer.api_keys] == [(18, 0, 4)]
    assert ask(client).error_code == 0  # the connection lives on


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">ihhi", 8, 0, 2, 1),
        struct.pack(">ihhi", 8, 999, 0, 1),
        b"\xff\xff\xff\xff",
        struct.pack(">ihhi", 20, 0, 9, 1) + b"\xff" * 12,
    ],
    ids=["http", "Produce v2", "unknown API", "negative length", "malformed"],
)
def test_an_invalid_request_closes_the_connection(client: RawClient, data: bytes) -> None:
    client.send_bytes(data)
    assert client.rest() == b""


def fetch_request(max_wait_ms: int) -> Any:
    part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchRequest.FetchTopic(topic="hits", partitions=[part])
    return FetchRequest(version=11, max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[topic])


def test_a_fetch_returns_as_soon_as_a_record_arrives(broker: DevBroker, client: RawClient) -> None:
    seen = broker.statistics().requests.get("Fetch", 0)
    client.send(fetch_request(20_000))
    broker.wait_until(requests={"Fetch": seen + 1})
    with RawClient(broker.bootstrap.split(",")[0]) as producer:
        ask(producer)
    part = client.receive(FetchResponse, 11).responses[0].partitions[0]
    assert (part.high_watermark, len(part.records) > 0) == (2, True)


def test_a_fetch_returns_after_its_max_wait(client: RawClient) -> None:
    started = time.monotonic()
    client.send(fetch_request(200))
    part = client.receive(FetchResponse, 11).responses[0].partitions[0]
    assert (part.error_code, len(part.records or b"")) == (0, 0)
    assert time.monotonic() - started >= 0.2


@pytest.mark.parametrize("is_fetch", [True, False])
def test_a_wait_ends_when_the_broker_counts_a_request(broker: DevBroker, client: RawClient, is_fetch: bool) -> None:
    """Neither request gets its response within the time limit of the wait."""
    before = broker.statistics()
    broker.inject(Fault(action=FaultAction.SILENCE, ms=60_000))
    request = fetch_request(20_000) if is_fetch else produce([("hits", 0, make_batch(2))], version=VERSION)
    sender = Timer(0.3, client.send, (request,))
    sender.start()
    started = time.monotonic()
    if is_fetch:
        broker.wait_until(requests={"Fetch": before.requests.get("Fetch", 0) + 1}, within=8)
    else:
        broker.wait_until(faults={"silence": before.faults.get("silence", 0) + 1}, within=8)
    assert time.monotonic() - started < 7
    sender.join()
    broker.broker_down(1)  # ends the silence
    broker.broker_up(1)


def test_a_waiting_fetch_returns_an_error_when_the_leader_moves(broker: DevBroker, client: RawClient) -> None:
    seen = broker.statistics().requests.get("Fetch", 0)
    client.send(fetch_request(20_000))
    broker.wait_until(requests={"Fetch": seen + 1})
    broker.move_leader("hits", 0, 2)
    assert client.receive(FetchResponse, 11).responses[0].partitions[0].error_code == 6


def leaders(client: RawClient) -> tuple[list[int], list[int]]:
    """Return the ids of the brokers, and the leader of "hits"."""
    client.send(MetadataRequest(version=1, topics=None))
    response = client.receive(MetadataResponse, 1)
    (topic,) = response.topics
    return [node.node_id for node in response.brokers], [part.leader_id for part in topic.partitions]


def test_stale_metadata_names_the_old_leader_after_a_move(broker: DevBroker, client: RawClient) -> None:
    broker.move_leader("hits", 0, 2, stale=2)
    assert ask(client).error_code == 6
    assert [leaders(client)[1] for _ in range(3)] == [[1], [1], [2]]


def test_removing_all_faults_ends_stale_metadata(broker: DevBroker, client: RawClient) -> None:
    broker.move_leader("hits", 0, 2, stale=2)
    broker.clear_faults(broker.inject(Fault(action=FaultAction.CLOSE)))
    assert leaders(client)[1] == [1]
    broker.clear_faults()
    assert leaders(client)[1] == [2]


def test_a_refused_command_does_not_freeze_the_metadata(broker: DevBroker, client: RawClient) -> None:
    down, move = broker.broker_down, broker.move_leader
    refused = (partial(down, 9), partial(move, "hits", 0, 9), partial(move, "hits", 9, 2))
    for partitions, command in enumerate(refused, start=2):
        with pytest.raises(CommandError, match=r"There is no broker|has no partition"):
            command(stale=1)
        broker.add_partitions("hits", partitions)
        assert len(leaders(client)[1]) == partitions
    with pytest.raises(CommandError, match="stale"):
        down(2, stale=-1)


def test_a_broker_goes_down_and_returns_on_its_port(broker: DevBroker, client: RawClient) -> None:
    address = broker.bootstrap.split(",")[1]
    with RawClient(address) as other:
        broker.broker_down(2)
        assert other.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        RawClient(address)
    assert leaders(client) == ([1], [1])
    assert broker.broker_up(2) == int(address.rpartition(":")[2])
    with RawClient(address) as again:
        assert leaders(again) == ([1, 2], [1])


def test_a_dead_broker_stays_in_stale_metadata(broker: DevBroker, client: RawClient) -> None:
    broker.broker_down(2, stale=1)
    assert [leaders(client)[0] for _ in range(2)] == [[1, 2], [1]]
    broker.broker_up(2)


def test_a_broker_returns_on_another_port(broker: DevBroker, client: RawClient) -> None:
    old = int(broker.bootstrap.rpartition(":")[2])
    broker.broker_down(2)
    assert broker.broker_up(2, port=0) != old
    assert broker.broker_up(2, port=old) == old


def test_a_broker_can_go_down_during_a_delay(broker: DevBroker, client: RawClient) -> None:
    broker.inject(Fault(action=FaultAction.DELAY, ms=60_000))
    before = broker.statistics().records
    client.send(produce([("hits", 0, make_batch(2))], version=VERSION))
    broker.wait_until(records=before + 2)
    broker.broker_down(1, elect=True)
    with pytest.raises(ConnectionError):
        raise ConnectionError(client.rest())
    with RawClient(broker.bootstrap.split(",")[1]) as other:
        assert leaders(other) == ([2], [2])
    broker.broker_up(1)


def test_a_down_broker_keeps_its_port_reserved(broker: DevBroker) -> None:
    port = int(broker.bootstrap.rpartition(":")[2])
    broker.broker_down(2)
    with socket.socket() as thief, pytest.raises(OSError, match="in use"):
        thief.bind(("127.0.0.1", port))
    broker.broker_up(2)
