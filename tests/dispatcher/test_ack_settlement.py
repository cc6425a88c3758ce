"""Good answers: the batches of a response are settled together, and counted as if each had come alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp import kernels
from bruce_mp.ipc.frames import EVERYTHING, Parcel, ParcelKind
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.kafka.kafka_types import PartitionAck
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.rows import ProcessRow
from bruce_mp.slab.runs import segment_words
from bruce_mp.slab.tables import PartitionTable, TopicTable
from bruce_mp.telemetry.counters import Counter
from bruce_mp.telemetry.latency_histogram import read_latencies
from support.crash_images import crash_images
from support.dispatchers import assign, synced_dispatcher
from support.record_batches import KafkaRecord
from support.slabs import DISPATCHER_ROW, new_slab
from support.variants import PURE_KERNELS_ONLY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bruce_mp.dispatcher.core import Dispatcher
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch

SLOT: Final = 0
NAMES: Final = (b"t1", b"t2")
PARTITIONS: Final = 3
RECORD: Final = KafkaRecord(1_700_000_000_000, b"k", b"v" * 10)
GEOMETRY: Final = Geometry(chunks=32, topics=16, partitions=16, landing_slots=4, landing_slot_size=1024)


@pytest.fixture
def slab() -> Iterator[Slab]:
    with new_slab(GEOMETRY) as made:
        for name in NAMES:
            topic = TopicTable(made).add(name, PARTITIONS)
            for partition in range(PARTITIONS):
                PartitionTable(made).ensure_entry(topic, partition)
        made.words[lay.SUPER_IDEMPOTENCE >> 2] = 1
        yield made


@pytest.fixture
def dispatcher(slab: Slab) -> Dispatcher:
    made = synced_dispatcher(slab)
    made.on_connected(broker_deduplicates=True)
    made.drain_outbox()
    return made


def send(slab: Slab, to: Dispatcher, *sizes: int) -> list[BuiltBatch]:
    """A request with a batch for each partition of each topic, in order; of `sizes` many records, a segment each."""
    for topic in range(1, len(NAMES) + 1):
        for partition in range(PARTITIONS):
            assign(slab, to, [[RECORD] * size for size in sizes], topic, partition)
    batches = to.next_request(0, 0.0)
    assert len(batches) == len(NAMES) * PARTITIONS
    return batches


def acks(batches: Sequence[BuiltBatch], **errors: int) -> list[PartitionAck]:
    """Good answers, but for these: `at3=6`."""
    return [
        PartitionAck(NAMES[batch.topic - 1], batch.partition, errors.get(f"at{index}", 0))
        for index, batch in enumerate(batches)
    ]


def count(slab: Slab, counter: int) -> int:
    return ProcessRow(slab, DISPATCHER_ROW).counters[counter]


def states(slab: Slab, batches: Sequence[BuiltBatch]) -> list[set[int]]:
    """For each batch the states of its records."""
    return [
        {slab.words[at] & 0xFF for segment in batch.segments for at in segment_words(slab, segment)}
        for batch in batches
    ]


@pytest.mark.parametrize("has_acks", [True, False])
def test_a_response_is_settled_in_one_transaction(slab: Slab, dispatcher: Dispatcher, *, has_acks: bool) -> None:
    batches = send(slab, dispatcher, 2, 3)
    version = ProcessRow(slab, DISPATCHER_ROW).version
    assert not dispatcher.on_acks(batches, acks(batches) if has_acks else [], 0.0)
    assert ProcessRow(slab, DISPATCHER_ROW).version == version + 2
    assert states(slab, batches) == [{RunState.DELIVERED}] * 6
    assert count_books(slab).delivered == 6 * 5
    assert count(slab, Counter.ConnectorGotSuccessfulAck) == count(slab, Counter.AckErrorFirst + 1) == 6
    assert sum(read_latencies(slab)[0]) == 6 * 5


@pytest.mark.parametrize("most", [4, 5])  # two batches of two, and half of one
def test_excess_batches_of_a_response_are_settled_whole_in_more_transactions(
    slab: Slab, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(kernels, "Deliveries", partial(kernels.Deliveries, max_segments=most))
    dispatcher = synced_dispatcher(slab)
    dispatcher.on_connected(broker_deduplicates=True)
    batches = send(slab, dispatcher, 2, 3)
    version = ProcessRow(slab, DISPATCHER_ROW).version
    dispatcher.on_acks(batches, acks(batches), 0.0)
    assert ProcessRow(slab, DISPATCHER_ROW).version == version + 3 * 2
    assert states(slab, batches) == [{RunState.DELIVERED}] * 6
    assert count(slab, Counter.ConnectorGotSuccessfulAck) == 6
    assert [event.message_count for event in dispatcher.traffic.events()] == [15, 15]


@PURE_KERNELS_ONLY
def test_killed_at_any_store_each_batch_is_settled_whole_or_not_at_all(slab: Slab, dispatcher: Dispatcher) -> None:
    batches = send(slab, dispatcher, 1, 2)
    geometry = slab.geometry
    row_at = geometry.rows_at + DISPATCHER_ROW * lay.ROW_BYTES
    regions = [range(row_at, row_at + lay.ROW_BYTES), range(geometry.chunks_at, geometry.file_size)]
    outcomes = []
    for _ in crash_images(slab, regions, lambda: dispatcher.on_acks(batches, acks(batches, at2=6), 0.0)):
        ProcessRow.recover(slab, DISPATCHER_ROW)
        found = states(slab, batches)
        assert found.pop(2) == {RunState.IN_FLIGHT}
        settled = found == [{RunState.DELIVERED}] * 5
        assert settled or found == [{RunState.IN_FLIGHT}] * 5
        assert count_books(slab).delivered == sum(read_latencies(slab)[0]) == (15 if settled else 0)
        outcomes.append(settled)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


def test_refusals_and_traffic_are_recorded_by_topic(slab: Slab, dispatcher: Dispatcher) -> None:
    topics = TopicTable(slab)
    for topic in (1, 2):
        topics.store_refusal(topic, 29)
    batches = send(slab, dispatcher, 4)
    dispatcher.on_acks(batches, acks(batches, at0=29, at1=29, at2=29), 0.0)
    assert topics.refusals() == {b"t1": 29}
    first, second = sorted(dispatcher.traffic.events(), key=lambda event: event.topic)
    size = RECORD_SIZE * 4
    assert (first.topic, first.message_count, first.errors) == (b"t1", 0, 3)
    assert (second.topic, second.message_count, second.byte_count, second.errors) == (b"t2", 12, 3 * size, 0)
    assert sum(second.latency_counts.values()) == 12
    assert [trouble.topic for trouble in dispatcher.partition_errors.as_tuple()] == [b"t1"] * 3


RECORD_SIZE: Final = len(RECORD.key or b"") + len(RECORD.value or b"")


@pytest.mark.parametrize("field", [lay.RUN_COUNT, lay.RUN_MAGIC_AT])  # found by settling, by reading
def test_a_batch_damaged_in_flight_is_quarantined_and_its_neighbours_delivered(
    slab: Slab, dispatcher: Dispatcher, field: int
) -> None:
    batches = send(slab, dispatcher, 2, 3)
    damaged = batches[4].segments[0]
    slab.words[(slab.chunk_at(damaged.chunk) + damaged.run + field) >> 2] += 1
    dispatcher.on_acks(batches, acks(batches, at1=19), 0.0)
    intact = [batches[0], *batches[2:4], batches[5], batches[4]._replace(segments=batches[4].segments[1:])]
    assert states(slab, intact) == [{RunState.DELIVERED}] * 5
    assert count(slab, Counter.MsgDelivered) == sum(read_latencies(slab)[0]) == 4 * 5 + 3
    assert sorted(event.message_count for event in dispatcher.traffic.events()) == [10, 13]
    assert count(slab, Counter.RefusedDamagedPlace) == 1
    assert count(slab, Counter.ConnectorGotSuccessfulAck) == 5
    (again,) = dispatcher.next_request(0, 1.0)
    assert again == batches[1]


def test_an_error_affects_only_its_own_batch(slab: Slab, dispatcher: Dispatcher) -> None:
    batches = send(slab, dispatcher, 1)
    dispatcher.on_acks(batches, acks(batches, at1=19, at4=46), 0.0)
    in_flight = [index for index, found in enumerate(states(slab, batches)) if found != {RunState.DELIVERED}]
    assert in_flight == [1]
    assert count_books(slab).delivered == 5
    counted = [count(slab, Counter.AckErrorFirst + 1 + code) for code in (0, 19, 46)]
    assert counted == [4, 1, 1]
    assert count(slab, Counter.ConnectorGotSuccessfulAck) == 5
    assert len(dispatcher.partition_errors.as_tuple()) == 1
    (again,) = dispatcher.next_request(0, 1.0)
    assert again == batches[1]
    dispatcher.on_acks([again], acks([again]), 1.0)
    assert count_books(slab).delivered == 6
    assert not dispatcher.partition_errors


def hand_back(to: Dispatcher, *places: tuple[int, int]) -> None:
    words = [Parcel(ParcelKind.HAND_BACK, topic, partition) for topic, partition in places]
    to.on_parcels([Parcel(ParcelKind.SENDER, 0, 1), *words], 0)
    assert not to.drain_outbox()


def test_all_partitions_are_handed_back_when_all_responses_arrived(slab: Slab, dispatcher: Dispatcher) -> None:
    batches = send(slab, dispatcher, 1)
    hand_back(dispatcher, (0, EVERYTHING))
    dispatcher.on_acks(batches, acks(batches), 0.0)
    assert [parcel[:3] for parcel in dispatcher.drain_outbox()[1:]] == [(ParcelKind.HANDED_BACK, 0, EVERYTHING)]


def test_a_hand_back_waits_for_the_whole_response(slab: Slab, dispatcher: Dispatcher) -> None:
    batches = send(slab, dispatcher, 1)
    hand_back(dispatcher, (1, 2), (0, EVERYTHING))
    dispatcher.on_acks(batches, acks(batches, at3=6), 0.0)
    assert [parcel[:3] for parcel in dispatcher.drain_outbox()[1:]] == [
        (ParcelKind.HANDED_BACK, 1, 2),
        (ParcelKind.PAUSED, 2, 0),
        (ParcelKind.RETURNED_SENT, 2, 0),
        (ParcelKind.HANDED_BACK, 0, EVERYTHING),
    ]
    assert count_books(slab).delivered == 5


def test_acks_0_batches_are_delivered_and_handed_back_when_written(slab: Slab, dispatcher: Dispatcher) -> None:
    batches = send(slab, dispatcher, 2)
    hand_back(dispatcher, (1, 2))
    dispatcher.on_written(batches, 0.0)
    assert count_books(slab).delivered == count(slab, Counter.AckNotRequired) == 12
    assert count(slab, Counter.AckErrorFirst + 1) == 0
    assert [parcel[:3] for parcel in dispatcher.drain_outbox()[1:]] == [(ParcelKind.HANDED_BACK, 1, 2)]
