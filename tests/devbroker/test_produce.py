"""The Produce handler, fed with encoded requests."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse, ProduceResponse

from bruce_mp.devbroker.batch import BatchCheckSettings
from bruce_mp.devbroker.codes import Code
from bruce_mp.devbroker.faults import Fault, FaultAction, TriggeredFaults
from bruce_mp.errors import RemoteProtocolError
from devbroker.kit import Desk, make_batch, produce


@pytest.fixture
def desk() -> Desk:
    made = Desk(brokers=2)
    made.cluster.add_topic("hits", 2)  # led by broker 1 and 2
    return made


def send(desk: Desk, batch: bytes | None, topic: str = "hits", partition: int = 0, **options: Any) -> Any:
    """Return the response for one partition."""
    broker, triggered = options.pop("broker", 1), options.pop("triggered", TriggeredFaults())
    response = desk.ask(
        produce([(topic, partition, batch)], **options), ProduceResponse, broker=broker, triggered=triggered
    )
    return response.responses[0].partition_responses[0]


@pytest.mark.parametrize("version", range(3, 13))
def test_every_produce_version_appends(desk: Desk, version: int) -> None:
    assert send(desk, make_batch(3), version=version).base_offset == 0
    answer = send(desk, make_batch(2), version=version)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 3, -1)
    assert desk.statistics.records == 5


def test_each_partition_has_its_own_error_code(desk: Desk) -> None:
    parts = [("hits", 0, make_batch()), ("hits", 1, make_batch()), ("none", 0, make_batch()), ("hits", 7, make_batch())]
    response = desk.ask(produce(parts), ProduceResponse)
    codes = [part.error_code for topic in response.responses for part in topic.partition_responses]
    assert codes == [0, Code.NOT_LEADER_OR_FOLLOWER] + [Code.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert desk.statistics.errors == {3: 2, 6: 1}


def test_not_leader_errors_name_the_new_leader(desk: Desk) -> None:
    desk.cluster.move_leader("hits", 0, 2)
    response = desk.ask(produce([("hits", 0, make_batch())], version=10), ProduceResponse)
    leader = response.responses[0].partition_responses[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (2, 1)
    assert [(node.node_id, node.port) for node in response.node_endpoints] == [(2, 9002)]


def test_refused_batches_are_not_appended() -> None:
    desk = Desk(limits=BatchCheckSettings(message_max_bytes=200))
    desk.cluster.add_topic("hits", 1)
    corrupt = make_batch()[:-1] + b"\xff"
    codes = [send(desk, batch).error_code for batch in (corrupt, make_batch(1, value=b"x" * 200), None)]
    assert codes == [Code.CORRUPT_MESSAGE, Code.MESSAGE_TOO_LARGE, Code.INVALID_RECORD]
    assert desk.cluster.partition("hits", 0).log.end == 0


def test_duplicates_get_the_first_offset(desk: Desk) -> None:
    batch = make_batch(3, producer=(1000, 0, 0))
    offsets = [send(desk, raw).base_offset for raw in (batch, make_batch(1, producer=(1000, 0, 3)), batch)]
    assert offsets == [0, 3, 0]
    assert (desk.statistics.records, desk.statistics.duplicates) == (4, 1)


def test_sequence_errors_are_counted(desk: Desk) -> None:
    send(desk, make_batch(3, producer=(1000, 1, 0)))
    assert send(desk, make_batch(3, producer=(1000, 1, 4))).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(desk, make_batch(3, producer=(1000, 0, 3))).error_code == Code.INVALID_PRODUCER_EPOCH
    assert desk.statistics.sequence_errors == 2


def test_duplicate_detection_survives_a_leader_change(desk: Desk) -> None:
    batch = make_batch(3, producer=(1000, 0, 0))
    send(desk, batch)
    desk.cluster.move_leader("hits", 0, 2)
    assert send(desk, batch, broker=2).base_offset == 0
    assert desk.statistics.duplicates == 1


def test_acks_0_returns_no_response(desk: Desk) -> None:
    assert desk.ask(produce([("hits", 0, make_batch(4))], acks=0), ProduceResponse) is None
    assert desk.statistics.records == 4


def test_acks_0_with_an_error_closes(desk: Desk) -> None:
    with pytest.raises(RemoteProtocolError):
        desk.ask(produce([("hits", 1, make_batch())], acks=0), ProduceResponse)


def test_other_acks_are_refused(desk: Desk) -> None:
    assert send(desk, make_batch(), acks=2).error_code == Code.INVALID_REQUIRED_ACKS


def test_scripted_errors_apply_before_or_after_the_append(desk: Desk) -> None:
    error = TriggeredFaults((Fault(action=FaultAction.ERROR, code=19, partition=0),))
    appended = TriggeredFaults((Fault(action=FaultAction.ERROR_APPENDED, code=20),))
    assert send(desk, make_batch(), triggered=error).error_code == 19
    assert desk.statistics.records == 0
    answer = send(desk, make_batch(), triggered=appended)
    assert (answer.error_code, answer.base_offset) == (20, -1)
    assert desk.statistics.records == 1
    assert desk.statistics.errors == {19: 1, 20: 1}


def test_a_scripted_error_6_for_an_unknown_partition_names_no_leader(desk: Desk) -> None:
    error = TriggeredFaults((Fault(action=FaultAction.ERROR, code=6),))
    assert send(desk, make_batch(), partition=9, triggered=error, version=10).current_leader.leader_id == -1


def test_a_scripted_error_6_after_the_append_names_the_leader(desk: Desk) -> None:
    error = TriggeredFaults((Fault(action=FaultAction.ERROR_APPENDED, code=6),))
    answer = send(desk, make_batch(), triggered=error, version=10)
    assert answer.current_leader.leader_id == desk.cluster.partition("hits", 0).leader
    assert desk.statistics.records == 1


@pytest.mark.parametrize("version", range(6))
def test_each_init_producer_id_returns_a_new_id(desk: Desk, version: int) -> None:
    request = InitProducerIdRequest(version=version, transactional_id=None, transaction_timeout_ms=1)
    answers = [desk.ask(request, InitProducerIdResponse) for _ in range(2)]
    assert [(a.error_code, a.producer_id, a.producer_epoch) for a in answers] == [(0, 1000, 0), (0, 1001, 0)]


def test_transactional_producers_are_refused(desk: Desk) -> None:
    request = InitProducerIdRequest(version=1, transactional_id="t", transaction_timeout_ms=1)
    assert desk.ask(request, InitProducerIdResponse).error_code == Code.INVALID_REQUEST
