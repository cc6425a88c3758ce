"""A dispatcher's reports about its broker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bruce_mp.dispatcher.connection_status import ConnectionStatus, PartitionErrors
from bruce_mp.ipc.control_messages import Broker
from bruce_mp.slab.runs import Segment
from bruce_mp.status.event_decoder import decode_events
from bruce_mp.telemetry.broker_status import MAX_LISTED_SCOPES, BrokerStatus, PartitionError
from bruce_mp.telemetry.event_output import EventOutput
from bruce_mp.telemetry.stalls import PartitionStall, WaitingSegments
from bruce_mp.telemetry.traffic import TrafficEvent, TrafficSums
from support.fake_deliveries import FakeDeliveries

if TYPE_CHECKING:
    import pytest


class Said:
    def __init__(self) -> None:
        self.now_ms = 1000
        self.sent: list[bytes] = []
        self.delivered = 0
        self.waiting: list[tuple[bytes, int, WaitingSegments]] = []
        self.delivered_by_topic = FakeDeliveries()
        output = EventOutput(self, TrafficSums(self.delivered_by_topic))
        self.standing = ConnectionStatus(3, Broker(7, "kafka7", 9092), output, lambda: self.now_ms)

    def send_bytes(self, data: bytes) -> bool:
        self.sent.append(data)
        return False

    def last(self) -> BrokerStatus:
        self.standing.publish(2, (PartitionError(b"t", 1, "E", 5),), self.delivered, self.waiting)
        (event,) = decode_events(self.sent[-1])
        assert isinstance(event, BrokerStatus)
        return event


def segment(first: int, records: int = 3) -> Segment:
    return Segment(1, 2, 64, first, records, 10)


def test_status_has_the_time_of_the_last_acknowledgement() -> None:
    said = Said()
    assert said.last().acked_ms == 0
    said.delivered, said.now_ms = 5, 2000
    assert said.last().acked_ms == 2000
    said.now_ms = 3000
    assert said.last().acked_ms == 2000


def test_status_and_sums_share_a_frame() -> None:
    said = Said()
    said.delivered_by_topic.append((b"t", 2, 10, {0: 2}))
    said.standing.publish(0, (), 0, [])
    status, traffic = decode_events(said.sent.pop())
    assert isinstance(status, BrokerStatus)
    assert traffic == TrafficEvent(b"t", 2, 10, {0: 2}, 0, "")
    assert not said.sent


def test_status_lists_a_partition_until_its_oldest_message_changes() -> None:
    said = Said()
    said.waiting = [(b"t", 1, WaitingSegments([segment(152), segment(600)])), (b"t", 2, WaitingSegments([]))]
    assert said.last().stalls == ()
    said.now_ms += 1000
    assert said.last().stalls == (PartitionStall(b"t", 1, 7, 6, 1000, (1, 2, 64, 152)),)
    said.waiting = [(b"t", 1, WaitingSegments([segment(600)]))]
    assert said.last().stalls == ()
    said.now_ms += 3000
    assert [(stall.message_count, stall.since_ms) for stall in said.last().stalls] == [(3, 2000)]


def test_stall_goes_on_while_another_process_has_the_message() -> None:
    said = Said()
    there = [(b"t", 1, WaitingSegments([segment(152)]))]
    for said.now_ms, said.waiting in ((1000, there), (2000, []), (10_900, there)):
        stalls = said.last().stalls
    assert [stall.since_ms for stall in stalls] == [1000]
    for said.now_ms, said.waiting in ((11_900, []), (21_000, []), (22_000, there), (23_000, there)):
        stalls = said.last().stalls
    assert [stall.since_ms for stall in stalls] == [22_000]


def test_connection_status_follows_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    said = Said()
    assert said.last() == BrokerStatus(
        3, 7, "kafka7", 9092, "not connected", 1000, 2, "", 0, None, (PartitionError(b"t", 1, "E", 5),)
    )
    steps = (
        (said.standing.on_connecting, "connecting"),
        (lambda: said.standing.on_connected(exactly_once=True), "connected"),
        (lambda: said.standing.on_failed("It hung up."), "failed"),
        (said.standing.on_connecting, "connecting"),
        (lambda: said.standing.on_failed("Refused."), "failed"),
    )
    for step, connection in steps:
        said.now_ms += 1000
        step()
        assert (said.last().connection, said.last().since_ms) == (connection, said.now_ms)
    assert (said.last().last_error, said.last().last_error_ms, said.last().exactly_once) == ("Refused.", 6000, True)
    assert not caplog.records
    said.now_ms += 500
    said.standing.on_connected(exactly_once=False)
    assert [record.getMessage() for record in caplog.records] == ["Broker 7 at kafka7:9092 is back after 2.5 s."]
    assert (said.last().last_error, said.last().exactly_once) == ("Refused.", False)
    said.standing.on_closed()
    said.standing.on_connected(exactly_once=True)
    assert len(caplog.records) == 1


def test_a_ready_connection_needs_no_operator() -> None:
    said = Said()
    said.standing.on_failed("It refuses the login of alice.", needs_operator=True)
    said.standing.on_connected(exactly_once=True)
    assert not said.last().needs_operator


def test_new_settings_end_the_failure_of_the_old_ones() -> None:
    said = Said()
    said.standing.on_failed("It refuses the login of alice.", needs_operator=True)
    assert (said.last().connection, said.last().needs_operator) == ("failed", True)
    said.standing.on_new_settings()
    after = said.last()
    assert (after.connection, after.needs_operator, after.last_error, after.last_error_ms) == (
        "not connected",
        False,
        "",
        0,
    )
    said.standing.on_connected(exactly_once=True)
    said.standing.on_new_settings()
    assert said.last().connection == "connected"


def test_partition_errors_last_until_a_successful_ack() -> None:
    now = [10]
    partition_errors = PartitionErrors(lambda: now[0])
    partition_errors.record(b"t", 1, "A")
    now[0] = 20
    partition_errors.record(b"t", 1, "A")
    partition_errors.record(b"t", 2, "A")
    assert partition_errors.as_tuple() == (PartitionError(b"t", 1, "A", 10), PartitionError(b"t", 2, "A", 20))
    now[0] = 30
    partition_errors.record(b"t", 1, "B")
    partition_errors.clear(b"t", 2)
    assert partition_errors.as_tuple() == (PartitionError(b"t", 1, "B", 30),)


def test_error_of_a_partition_that_goes_back_is_in_one_more_report() -> None:
    errors = PartitionErrors(lambda: 10)
    for partition in (1, 2):
        errors.record(b"t", partition, "A")
        errors.release(b"t", partition)
    errors.record(b"t", 2, "A")  # it is here again
    assert len(errors.as_tuple()) == 2
    errors.drop_released()
    assert errors.as_tuple() == (PartitionError(b"t", 2, "A", 10),)


def test_partition_errors_are_bounded() -> None:
    partition_errors = PartitionErrors(lambda: 0)
    for number in range(MAX_LISTED_SCOPES + 5):
        partition_errors.record(b"t", number, "A")
    assert len(partition_errors.as_tuple()) == MAX_LISTED_SCOPES
