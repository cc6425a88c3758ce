"""One connection: negotiation, order, deadlines, and every way in which a broker can be wrong."""

from __future__ import annotations

import io
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.metadata import MetadataResponse
from kafka.protocol.producer import InitProducerIdResponse, ProduceRequest, ProduceResponse

from bruce_mp.errors import LocalProtocolError
from bruce_mp.protocol.kafka.api_versions import BEFORE_API_VERSIONS, BrokerCapabilities
from bruce_mp.protocol.kafka.broker_connection import BrokerConnection
from bruce_mp.protocol.kafka.connection_events import (
    TRANSITIONS,
    BytesToSend,
    Closed,
    ConnectionReady,
    ConnectionState,
    ConnectionStep,
    EncodedRequest,
    Event,
    Failed,
    FailureCause,
    MetadataReceived,
    ProduceAcked,
    ProducerIdReceived,
)
from bruce_mp.protocol.kafka.kafka_types import BrokerAddress, PartitionAck, PartitionData
from bruce_mp.protocol.kafka.sasl import Plain
from bruce_mp.protocol.kafka.version_negotiation import METADATA_THEN_VERSIONS, VERSIONS_TIMEOUT_S, assume
from support.examples import examples
from support.kafka_answers import framed, versions

KAFKA_2_8 = {0: (0, 9), 3: (0, 11), 18: (0, 3), 22: (0, 4)}
WITH_LOGINS = KAFKA_2_8 | {17: (0, 1), 36: (0, 2)}
KAFKA_0_10 = {0: (0, 2), 3: (0, 2), 18: (0, 0)}
NO_PRODUCER_IDS = {0: (0, 9), 3: (0, 9), 18: (0, 3)}
TIMEOUT = 30.0
BATCH = PartitionData(b"t", 0, b"records")
LOGIN = Plain("alice", "secret")


def refused_versions(error: int, correlation_id: int = 1) -> bytes:
    body = correlation_id.to_bytes(4, "big") + error.to_bytes(2, "big") + b"\xff\xff\xff"  # in no known shape
    return len(body).to_bytes(4, "big") + body


def acks(correlation_id: int, *partitions: tuple[str, int], error: int = 0, version: int = 9) -> bytes:
    topic, ack = ProduceResponse.TopicProduceResponse, ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    responses = [
        topic(
            name=name,
            partition_responses=[
                ack(
                    index=index,
                    error_code=error,
                    base_offset=5,
                    log_append_time_ms=-1,
                    log_start_offset=0,
                    record_errors=[],
                    error_message=None,
                )
            ],
        )
        for name, index in partitions
    ]
    return framed(ProduceResponse[version](responses=responses, throttle_time_ms=0), correlation_id)


def metadata(correlation_id: int, version: int = 11) -> bytes:
    brokers = [MetadataResponse.MetadataResponseBroker(node_id=1, host="b1", port=9092, rack=None)]
    return framed(MetadataResponse[version](brokers=brokers, topics=[], throttle_time_ms=0), correlation_id)


def producer_id(correlation_id: int) -> bytes:
    made = InitProducerIdResponse[4](throttle_time_ms=0, error_code=0, producer_id=99, producer_epoch=0)
    return framed(made, correlation_id)


def negotiating(**options: Any) -> BrokerConnection:
    connection = BrokerConnection("bruce", "b1:9092", timeout=TIMEOUT, **options)
    connection.on_connecting(0.0)
    connection.on_connected(0.0)
    return connection


def ready(apis: dict[int, tuple[int, int]] = KAFKA_2_8, **options: Any) -> BrokerConnection:
    connection = negotiating(**options)
    (event,) = connection.receive(versions(apis), 0.0)
    assert isinstance(event, ConnectionReady)
    return connection


def produce(connection: BrokerConnection, now: float = 0.0, *data: PartitionData, acks: int = -1) -> EncodedRequest:
    return connection.request_produce(data or [BATCH], now, acks=acks, timeout_ms=1000)


def the_failure(events: list[Event]) -> Failed:
    assert events
    assert isinstance(events[-1], Failed)
    return events[-1]


# --- agreeing on versions ---------------------------------------------------------------------------------------------
def test_the_connection_negotiates_versions() -> None:
    connection = BrokerConnection("bruce", "b1:9092")
    connection.on_connecting(1.0)
    (asked,) = connection.on_connected(2.0)
    header = RequestHeader.decode(io.BytesIO(asked[4:]), flexible=True)
    assert (header.request_api_key, header.request_api_version, header.correlation_id) == (18, 3, 1)
    assert connection.receive(versions(KAFKA_2_8), 3.0) == [ConnectionReady(BrokerCapabilities(9, 11, 4))]
    assert connection.capabilities == BrokerCapabilities(9, 11, 4)
    assert connection.state is ConnectionState.READY


def test_error_35_in_any_form_retries_with_version_0() -> None:
    connection = negotiating()
    (again,) = connection.receive(refused_versions(35), 1.0)
    assert isinstance(again, BytesToSend)
    assert again.data[4:12] == b"\x00\x12\x00\x00\x00\x00\x00\x02"
    assert connection.receive(versions(KAFKA_2_8, 2, version=0), 2.0) == [ConnectionReady(BrokerCapabilities(9, 11, 4))]


def test_a_refused_version_0_fails_the_connection() -> None:
    connection = negotiating()
    connection.receive(refused_versions(35), 1.0)
    failure = the_failure(connection.receive(refused_versions(35, 2), 2.0))
    assert failure.cause is FailureCause.BAD_DATA
    assert "error 35" in str(failure.error)


@pytest.mark.parametrize("error", [1, 41, 58])
def test_another_negotiation_error_fails_the_connection(error: int) -> None:
    assert f"error {error}" in str(the_failure(negotiating().receive(refused_versions(error), 1.0)).error)


def test_a_broker_without_a_common_version_fails_the_connection() -> None:
    connection = negotiating()
    failure = the_failure(connection.receive(versions({0: (14, 15), 3: (0, 13)}), 1.0))
    assert failure.cause is FailureCause.NO_COMMON_VERSION
    assert "Broker b1:9092" in str(failure.error)
    assert connection.state is ConnectionState.CLOSED


def test_kafka_0_10_is_retried_in_version_0_and_gets_its_own_versions() -> None:
    connection = negotiating()
    connection.receive(refused_versions(35), 1.0)
    (event,) = connection.receive(versions(KAFKA_0_10, 2, version=0), 2.0)
    assert event == ConnectionReady(BrokerCapabilities(2, 2, None))
    sent = produce(connection)
    assert sent.buffers[0][4:8] == b"\x00\x00\x00\x02"


# --- brokers that do not say their versions ---------------------------------------------------------------------------
def test_a_close_after_the_versions_request_suggests_kafka_0_8() -> None:
    failure = the_failure(negotiating().on_eof())
    assert (failure.cause, failure.unanswered) == (FailureCause.NO_API_VERSIONS, ())
    assert "closed the connection when asked which versions it speaks" in str(failure.error)


def test_a_timeout_after_the_versions_request_suggests_kafka_0_9() -> None:
    connection = negotiating()
    assert connection.next_deadline() == VERSIONS_TIMEOUT_S
    assert connection.check_deadline(VERSIONS_TIMEOUT_S - 0.1) == []
    failure = the_failure(connection.check_deadline(VERSIONS_TIMEOUT_S))
    assert (failure.cause, failure.unanswered) == (FailureCause.NO_API_VERSIONS, ())


def test_the_shorter_timeout_applies_to_the_versions_request() -> None:
    connection = BrokerConnection("bruce", "b1:9092", timeout=1.0)
    connection.on_connecting(0.0)
    connection.on_connected(0.0)
    assert connection.next_deadline() == 1.0


def looking_again() -> BrokerConnection:
    """Past the metadata, at the question for versions."""
    connection = negotiating(negotiation=METADATA_THEN_VERSIONS)
    (event,) = connection.receive(metadata(1, version=0), 10.0)
    assert isinstance(event, BytesToSend)
    assert event.data[4:8] == b"\x00\x12\x00\x03"
    return connection


def test_a_repeated_probe_starts_with_a_metadata_request() -> None:
    connection = BrokerConnection("bruce", "b1:9092", timeout=TIMEOUT, negotiation=METADATA_THEN_VERSIONS)
    connection.on_connecting(0.0)
    (asked,) = connection.on_connected(0.0)
    assert asked[4:12] == b"\x00\x03\x00\x00\x00\x00\x00\x01"
    assert connection.next_deadline() == TIMEOUT


def test_a_repeated_probe_of_a_current_broker_finds_its_versions() -> None:
    connection = looking_again()
    assert connection.receive(versions(KAFKA_2_8, 2), 11.0) == [ConnectionReady(BrokerCapabilities(9, 11, 4))]


def test_a_repeated_probe_of_an_old_broker_fails_as_the_first() -> None:
    assert the_failure(looking_again().on_eof()).cause is FailureCause.NO_API_VERSIONS
    connection = looking_again()
    assert connection.next_deadline() == 10.0 + VERSIONS_TIMEOUT_S
    assert the_failure(connection.check_deadline(10.0 + VERSIONS_TIMEOUT_S)).cause is FailureCause.NO_API_VERSIONS


def test_a_broker_without_a_metadata_response_is_not_an_old_one() -> None:
    assert the_failure(negotiating(negotiation=METADATA_THEN_VERSIONS).on_eof()).cause is FailureCause.CLOSED_BY_BROKER
    failure = the_failure(negotiating(negotiation=METADATA_THEN_VERSIONS).check_deadline(TIMEOUT))
    assert failure.cause is FailureCause.TIMED_OUT
    assert "when asked for metadata" in str(failure.error)


def assumed_old() -> BrokerConnection:
    return negotiating(negotiation=assume(BEFORE_API_VERSIONS))


def test_an_assumption_is_verified_by_metadata() -> None:
    connection = assumed_old()
    assert connection.receive(metadata(1, version=0), 1.0) == [ConnectionReady(BEFORE_API_VERSIONS)]
    sent = produce(connection)
    assert sent.buffers[0][4:8] == b"\x00\x00\x00\x00"
    (event,) = connection.receive(acks(sent.correlation_id, ("t", 0), version=0), 2.0)
    assert isinstance(event, ProduceAcked)
    assert event.response.acks == (PartitionAck(b"t", 0, 0, 5),)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"\0\0\0\x08\0\0\0\x01\0\0\0\x01", FailureCause.BAD_DATA),
        (b"\x15\x03\x01\0\x02\x02\x50", FailureCause.TLS_FAILED),
    ],
)
def test_a_wrong_assumption_fails_and_names_the_setting(answer: bytes, cause: FailureCause) -> None:
    failure = the_failure(assumed_old().receive(answer, 1.0))
    assert failure.cause is cause
    assert "kafka.broker_version" in str(failure.error)


def test_a_close_under_an_assumption_hints_at_the_setting() -> None:
    connection = assumed_old()
    connection.receive(metadata(1, version=0), 1.0)
    produce(connection)
    failure = the_failure(connection.on_eof())
    assert (failure.cause, failure.unanswered) == (FailureCause.CLOSED_BY_BROKER, (2,))
    assert "kafka.broker_version" in str(failure.error)


# --- requests and their answers ---------------------------------------------------------------------------------------
def test_a_produce_request_is_sent_and_acknowledged() -> None:
    connection = ready()
    sent = produce(connection)
    assert BATCH.records in b"".join(sent.buffers)
    decoded = ProduceRequest.decode(b"".join(sent.buffers), version=9, header=True, framed=True)
    assert (decoded.header.correlation_id, decoded.header.client_id, decoded.acks) == (sent.correlation_id, "bruce", -1)
    (event,) = connection.receive(acks(sent.correlation_id, ("t", 0)), 1.0)
    assert isinstance(event, ProduceAcked)
    assert event.correlation_id == sent.correlation_id
    assert event.response.acks == (PartitionAck(b"t", 0, 0, 5),)
    assert connection.unanswered == ()


def test_acks_keep_the_order_of_the_request() -> None:
    """Apache Kafka answers in the order of a hash map."""
    places = [("t", 1), ("u", 0), ("t", 0)]
    connection = ready()
    sent = produce(connection, 0.0, *[PartitionData(topic.encode(), index, b"records") for topic, index in places])
    (event,) = connection.receive(acks(sent.correlation_id, *sorted(places)), 1.0)
    assert isinstance(event, ProduceAcked)
    assert [(ack.topic.decode(), ack.partition) for ack in event.response.acks] == places


def test_error_acks_are_returned_to_the_caller() -> None:
    connection = ready()
    sent = produce(connection)
    (event,) = connection.receive(acks(sent.correlation_id, ("t", 0), error=6), 1.0)
    assert isinstance(event, ProduceAcked)
    assert event.response.acks[0].error == 6


@pytest.mark.parametrize(("throttle_ms", "ack_count"), [(None, 1), (0, 0), (30, 0)])
def test_a_response_without_errors_has_no_acks_if_the_fast_reader_reads_it(
    throttle_ms: int | None, ack_count: int
) -> None:
    asked: list[tuple[bytes, int, list[bytes], list[int]]] = []

    def read_accepted(*arguments: Any) -> int | None:
        asked.append(arguments)
        return throttle_ms

    connection = ready()
    sent = connection.request_produce([BATCH], 0.0, acks=-1, timeout_ms=1000, read_accepted=read_accepted)
    data = acks(sent.correlation_id, ("t", 0))
    (event,) = connection.receive(data, 1.0)
    assert isinstance(event, ProduceAcked)
    assert (len(event.response.acks), event.response.throttle_ms) == (ack_count, throttle_ms or 0)
    assert asked == [(data[4:], 9, [b"t"], [0])]


def test_metadata_is_requested_and_received() -> None:
    connection = ready()
    sent = connection.request_metadata(None, 0.0)
    (event,) = connection.receive(metadata(sent.correlation_id), 1.0)
    assert isinstance(event, MetadataReceived)
    assert event.metadata.brokers == {1: BrokerAddress("b1", 9092)}


def test_a_producer_id_is_requested_and_received() -> None:
    connection = ready()
    sent = connection.request_producer_id(0.0)
    (event,) = connection.receive(producer_id(sent.correlation_id), 1.0)
    assert isinstance(event, ProducerIdReceived)
    assert (event.response.producer_id, event.response.producer_epoch) == (99, 0)


def test_a_producer_id_request_without_broker_support_is_refused() -> None:
    connection = ready(NO_PRODUCER_IDS)
    with pytest.raises(LocalProtocolError, match="no producer ids"):
        connection.request_producer_id(0.0)
    assert connection.unanswered == ()


def test_a_request_that_cannot_be_built_awaits_no_response() -> None:
    connection = ready()
    with pytest.raises(LocalProtocolError):
        produce(connection, 0.0, BATCH, BATCH)
    with pytest.raises(LocalProtocolError):
        connection.request_metadata([b"\xff"], 0.0)
    assert (connection.unanswered, connection.next_deadline()) == ((), None)


def test_acks_0_awaits_no_response() -> None:
    connection = ready()
    unacknowledged = produce(connection, acks=0)
    assert (connection.unanswered, connection.next_deadline()) == ((), None)
    acknowledged = produce(connection)
    assert acknowledged.correlation_id == unacknowledged.correlation_id + 1
    assert isinstance(connection.receive(acks(acknowledged.correlation_id, ("t", 0)), 1.0)[0], ProduceAcked)


def everything() -> tuple[bytes, list[type]]:
    stream = versions(KAFKA_2_8) + acks(2, ("t", 0)) + metadata(3) + acks(4, ("t", 0), error=7) + producer_id(5)
    return stream, [ConnectionReady, ProduceAcked, MetadataReceived, ProduceAcked, ProducerIdReceived]


def conversation(step: int) -> list[Event]:
    """Four requests in flight, their answers cut into pieces of `step` bytes."""
    connection, events = negotiating(), []
    stream, _ = everything()
    start = len(versions(KAFKA_2_8))
    cuts = [*range(0, start, step), *range(start, len(stream), step), len(stream)]
    for begin, end in itertools.pairwise(cuts):
        if begin == start:
            produce(connection)
            connection.request_metadata(None, 0.0)
            produce(connection)
            connection.request_producer_id(0.0)
        events += connection.receive(stream[begin:end], 1.0)
    return events


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, 10_000])
def test_the_stream_may_be_split_anywhere(step: int) -> None:
    assert [type(event) for event in conversation(step)] == everything()[1]
    assert conversation(step) == conversation(10_000)


def test_correlation_ids_wrap_within_31_bits() -> None:
    connection = ready()
    connection._last_id = 0x7FFFFFFE
    assert [produce(connection).correlation_id for _ in range(3)] == [0x7FFFFFFF, 0, 1]


# --- deadlines --------------------------------------------------------------------------------------------------------
def test_an_idle_connection_has_no_deadline() -> None:
    connection = BrokerConnection("bruce", "b1:9092", timeout=TIMEOUT)
    assert connection.next_deadline() is None
    assert ready().next_deadline() is None


def test_the_connect_has_a_deadline() -> None:
    connection = BrokerConnection("bruce", "b1:9092", timeout=TIMEOUT)
    connection.on_connecting(100.0)
    assert connection.next_deadline() == 130.0
    failure = the_failure(connection.check_deadline(130.0))
    assert failure.cause is FailureCause.TIMED_OUT
    assert "did not accept a connection within 30 s" in str(failure.error)


def test_new_requests_do_not_move_the_deadline_of_an_old_one() -> None:
    connection = ready()
    first = produce(connection, 10.0)
    second = produce(connection, 39.0)
    assert connection.next_deadline() == 40.0
    assert connection.check_deadline(39.9) == []
    failure = the_failure(connection.check_deadline(40.0))
    assert failure.cause is FailureCause.TIMED_OUT
    assert failure.unanswered == (first.correlation_id, second.correlation_id)


def test_an_incomplete_response_does_not_extend_the_deadline() -> None:
    connection = ready()
    sent = produce(connection, 10.0)
    connection.receive(acks(sent.correlation_id, ("t", 0))[:-1], 39.0)
    assert the_failure(connection.check_deadline(40.0)).cause is FailureCause.TIMED_OUT


def test_a_requests_timeout_starts_at_the_preceding_response() -> None:
    connection = ready()
    first, second = produce(connection, 10.0), produce(connection, 11.0)
    connection.receive(acks(first.correlation_id, ("t", 0)), 38.0)
    assert connection.next_deadline() == 68.0
    connection.receive(acks(second.correlation_id, ("t", 0)), 50.0)
    assert connection.next_deadline() is None


# --- the broker goes --------------------------------------------------------------------------------------------------
def test_an_idle_connection_closed_by_the_broker_is_no_failure() -> None:
    connection = ready()
    assert connection.on_eof() == [Closed()]
    assert connection.on_eof() == []
    assert connection.state is ConnectionState.CLOSED


def test_a_close_by_the_broker_names_the_unanswered_requests() -> None:
    connection = ready()
    sent = [produce(connection).correlation_id for _ in range(3)]
    connection.receive(acks(sent[0], ("t", 0)), 1.0)
    failure = the_failure(connection.on_eof())
    assert (failure.cause, failure.unanswered) == (FailureCause.CLOSED_BY_BROKER, tuple(sent[1:]))


def test_close_returns_the_unanswered_requests() -> None:
    connection = ready()
    sent = produce(connection).correlation_id
    assert connection.close() == (sent,)
    assert connection.close() == ()


# --- the broker is wrong ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (acks(3, ("t", 0)), "It sent response 3, but 2 is the oldest request"),
        (acks(2, ("t", 1)), "does not name"),
        (acks(2, ("u", 0)), "does not name"),
        (acks(2, ("t", 0), ("t", 1)), "does not name"),
        (acks(2, ("t", 0), ("t", 0)), "does not name"),
        (acks(2), "does not name"),
        (metadata(2), "does not name"),
        (b"\0\0\0\x06\0\0\0\x02\0\0", "does not follow the protocol"),
        (b"\0\0\0\0", "0 bytes"),
        (b"\xff\xff\xff\xff", "-1 bytes"),
        (b"\x7f\xff\xff\xff", "2147483647 bytes"),
        (b"HTTP/1.1 400 Bad Request", "really Kafka"),
    ],
)
def test_a_protocol_violation_leaves_the_request_unanswered(data: bytes, complaint: str) -> None:
    connection = ready()
    assert produce(connection).correlation_id == 2
    failure = the_failure(connection.receive(data, 1.0))
    assert (failure.cause, failure.unanswered) == (FailureCause.BAD_DATA, (2,))
    assert complaint in str(failure.error)
    assert str(failure.error).startswith("Broker b1:9092 broke the protocol. ")
    assert connection.state is ConnectionState.CLOSED


def test_an_unrequested_response_is_refused() -> None:
    connection = ready()
    assert "without an outstanding request" in str(the_failure(connection.receive(acks(2, ("t", 0)), 1.0)).error)


def test_responses_before_a_protocol_violation_count() -> None:
    connection = ready()
    first, second = produce(connection).correlation_id, produce(connection).correlation_id
    events = connection.receive(acks(first, ("t", 0)) + acks(second, ("x", 0)), 1.0)
    assert isinstance(events[0], ProduceAcked)
    assert the_failure(events).unanswered == (second,)
    assert len(events) == 2


def test_a_frame_over_the_limit_is_refused() -> None:
    connection = ready(max_frame=200)
    produce(connection)
    assert "201 bytes" in str(the_failure(connection.receive((201).to_bytes(4, "big"), 1.0)).error)


@given(data=st.binary(max_size=400), at=st.integers(0, 400))
@examples(125)
def test_random_bytes_fail_the_connection_without_an_exception(data: bytes, at: int) -> None:
    connection = negotiating()
    stream = versions(KAFKA_2_8)[: at % 60] + data
    for event in connection.receive(stream, 0.0):
        assert isinstance(event, ConnectionReady | Failed)


@given(edits=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=4))
@examples(125)
def test_mutated_responses_yield_acks_or_failures(edits: list[tuple[int, int]]) -> None:
    connection = ready()
    sent = [produce(connection).correlation_id for _ in range(3)]
    stream = bytearray(b"".join(acks(one, ("t", 0)) for one in sent))
    for at, byte in edits:
        stream[at % len(stream)] = byte
    events = connection.receive(bytes(stream), 0.0)
    answered = [event.correlation_id for event in events if isinstance(event, ProduceAcked)]
    failed = [event for event in events if isinstance(event, Failed)]
    in_doubt = list(failed[0].unanswered) if failed else list(connection.unanswered)
    assert answered + in_doubt == sent


# --- the table of states ----------------------------------------------------------------------------------------------
ACTIONS: dict[ConnectionStep, Any] = {
    ConnectionStep.CONNECT: lambda one: one.on_connecting(0.0),
    ConnectionStep.CONNECTED: lambda one: one.on_connected(0.0),
    ConnectionStep.SEND: produce,
    ConnectionStep.RECEIVE: lambda one: one.receive(b"", 0.0),
    ConnectionStep.CLOSE: lambda one: one.close(),
}


def in_state(state: ConnectionState) -> BrokerConnection:
    connection = BrokerConnection("bruce", "b1:9092")
    if state is ConnectionState.DISCONNECTED:
        return connection
    if state is ConnectionState.CONNECTING:
        connection.on_connecting(0.0)
        return connection
    if state is ConnectionState.LOGGING_IN:
        return logging_in()
    connection = negotiating() if state is ConnectionState.NEGOTIATING else ready(WITH_LOGINS)
    if state is ConnectionState.RENEWING:
        connection.renew_login(LOGIN, 0.0)
    if state is ConnectionState.CLOSED:
        connection.close()
    return connection


def logging_in() -> BrokerConnection:
    connection = BrokerConnection("bruce", "b1:9092")
    connection.on_connecting(0.0)
    connection.on_connected(0.0, LOGIN)
    connection.receive(versions(WITH_LOGINS), 0.0)
    return connection


@pytest.mark.parametrize("state", ConnectionState)
@pytest.mark.parametrize("step", ACTIONS)
def test_the_connection_allows_exactly_the_steps_of_the_table(state: ConnectionState, step: ConnectionStep) -> None:
    connection = in_state(state)
    assert connection.state is state
    after = TRANSITIONS.get((state, step))
    if after is not None:
        ACTIONS[step](connection)
        assert connection.state is after
        return
    with pytest.raises(LocalProtocolError, match="b1:9092"):
        ACTIONS[step](connection)
    assert connection.state is state


def test_abilities_are_unknown_before_negotiation() -> None:
    with pytest.raises(LocalProtocolError, match="not agreed"):
        _ = negotiating().capabilities


def test_every_state_can_be_reached_and_left() -> None:
    reached = {ConnectionState.DISCONNECTED, *TRANSITIONS.values()}
    assert reached == set(ConnectionState)
    assert all((state, ConnectionStep.CLOSE) in TRANSITIONS for state in ConnectionState)
