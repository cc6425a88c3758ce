"""The dispatcher with a broker that does not recognise repeated batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from bruce_mp import kernels
from bruce_mp.ipc.frames import Parcel, ParcelKind
from bruce_mp.pipeline.stage_counts import count_books
from bruce_mp.protocol.kafka.kafka_types import PartitionAck
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState, state_word
from bruce_mp.slab.producer_id import store_producer
from support.dispatchers import assign, synced_dispatcher
from support.put_records import put_records
from support.record_batches import KafkaRecord
from support.slabs import set_state

if TYPE_CHECKING:
    from bruce_mp.dispatcher.core import Dispatcher
    from bruce_mp.slab.file import Slab

SLOT: Final = 0
CAN, CANNOT = 1, 2
RECORDS: Final = [KafkaRecord(1_700_000_000_000, b"k", b"v" * 10)] * 3


def dispatcher(slab: Slab, cluster: int) -> Dispatcher:
    """A dispatcher of a cluster that can recognise batches, or cannot."""
    slab.words[lay.SUPER_IDEMPOTENCE >> 2] = cluster
    return synced_dispatcher(slab)


def give(slab: Slab, to: Dispatcher) -> None:
    """Three more messages for partition 0."""
    assign(slab, to, [RECORDS])


def doubted(slab: Slab) -> int:
    return count_books(slab).possible_duplicates


@pytest.mark.parametrize(("cluster", "broker", "batches"), [(CAN, True, 2), (CAN, False, 1), (CANNOT, False, 1)])
def test_one_batch_of_a_partition_is_in_flight_without_idempotence_support(
    slab: Slab, cluster: int, broker: bool, batches: int
) -> None:
    """Two in flight, and the first refused: the second would be in front of it, or twice there."""
    one = dispatcher(slab, cluster)
    one.on_connected(broker_deduplicates=broker)
    give(slab, one)
    (first,) = one.next_request(0, 0.0)
    one.on_acks([first], [PartitionAck(b"t1", 0, 0)], 0.0)
    sent = []
    for in_flight in range(2):
        give(slab, one)
        sent += one.next_request(in_flight, 0.0)
    assert len(sent) == batches
    one.on_acks([sent[0]], [PartitionAck(b"t1", 0, 0)], 0.0)
    assert len(sent + one.next_request(1, 0.0)) == 2


@pytest.mark.parametrize(("cluster", "broker", "doubt"), [(CAN, True, 0), (CAN, False, 3), (CANNOT, False, 3)])
def test_a_lost_answer_is_a_possible_duplicate(slab: Slab, cluster: int, broker: bool, doubt: int) -> None:
    one = dispatcher(slab, cluster)
    one.on_connected(broker_deduplicates=broker)
    give(slab, one)
    assert one.next_request(0, 0.0)
    assert doubted(slab) == 0
    one.on_connection_lost()
    assert doubted(slab) == doubt


@pytest.mark.parametrize(("cluster", "broker", "doubt"), [(CAN, True, 0), (CAN, False, 3), (CANNOT, False, 3)])
def test_an_ambiguous_error_is_a_possible_duplicate(slab: Slab, cluster: int, broker: bool, doubt: int) -> None:
    one = dispatcher(slab, cluster)
    one.on_connected(broker_deduplicates=broker)
    give(slab, one)
    (batch,) = one.next_request(0, 0.0)
    one.on_acks([batch], [PartitionAck(b"t1", 0, 7)], 0.0)  # REQUEST_TIMED_OUT
    assert doubted(slab) == doubt


@pytest.mark.parametrize(("cluster", "broker", "doubt"), [(CAN, True, 0), (CAN, False, 3), (CANNOT, False, 3)])
def test_a_dead_dispatchers_batch_is_a_possible_duplicate(slab: Slab, cluster: int, broker: bool, doubt: int) -> None:
    first = dispatcher(slab, cluster)
    first.on_connected(broker_deduplicates=broker)
    give(slab, first)
    assert first.next_request(0, 0.0)
    second = dispatcher(slab, cluster)
    second.on_connected(broker_deduplicates=broker)
    assert doubted(slab) == doubt
    (again,) = second.next_request(0, 0.0)
    assert again.records == 3


@pytest.mark.parametrize(("broker", "doubt"), [(True, 0), (False, 3)])
def test_a_batch_moved_to_an_old_broker_is_a_possible_duplicate(slab: Slab, broker: bool, doubt: int) -> None:
    one = dispatcher(slab, CAN)
    one.on_connected(broker_deduplicates=broker)
    segments = put_records(slab, [RECORDS])
    kernels.write_sequence(slab, segments, 0, 0, 0, opens_batch=True)
    set_state(slab, segments, state_word(RunState.ASSIGNED_SENT, SLOT))
    one.on_parcels([Parcel(ParcelKind.SENDER, 0, 1), Parcel(ParcelKind.SENT, 1, 0, segments)], 0)
    assert doubted(slab) == doubt


def test_an_upgraded_broker_gets_sequence_numbers(slab: Slab) -> None:
    one = dispatcher(slab, CANNOT)
    one.on_connected(broker_deduplicates=False)
    give(slab, one)
    (first,) = one.next_request(0, 0.0)
    one.on_connection_lost()
    store_producer(slab, 7)
    one.on_parcels([Parcel(ParcelKind.SENDER, 0, 1), Parcel(ParcelKind.RESYNC, 2)], 0)
    one._is_paused = False
    one.on_connected(broker_deduplicates=True)
    (again,) = one.next_request(0, 0.0)
    assert (first.base_sequence, again.base_sequence) == (-1, -1), "a built batch stays as it is"
    one.on_acks([again], [PartitionAck(b"t1", 0, 0)], 0.0)
    for base in (0, 3):
        give(slab, one)
        (numbered,) = one.next_request(0, 0.0)
        assert numbered.base_sequence == base
        one.on_acks([numbered], [PartitionAck(b"t1", 0, 0)], 0.0)
