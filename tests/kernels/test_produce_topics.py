"""The topics of a produce request against their layout, batch by batch."""

from __future__ import annotations

import pytest

from bruce_mp.errors import SlabError
from bruce_mp.kernels import produce_topics, record_batch
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.produce_request import COPIED_BYTES, encode_topics
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer
from bruce_mp.slab.file import Geometry, Slab
from bruce_mp.slab.recovery import BuiltBatch
from support.put_records import put_records
from support.record_batches import KafkaRecord
from support.slabs import new_slab

PRODUCER_ID = 77
ROOMY = Geometry(chunks=640, topics=16, partitions=16, landing_slots=16, landing_slot_size=64)


def put(slab: Slab, partition: int, sizes: list[int], sequence: int = 5) -> BuiltBatch:
    records = [KafkaRecord(number, b"k", bytes(size)) for number, size in enumerate(sizes)]
    epoch = 3 if sequence >= 0 else -1
    return BuiltBatch(1, partition, epoch, sequence, tuple(put_records(slab, [records])))


def by_parts(slab: Slab, version: int, names: list[bytes], batches: list[BuiltBatch]) -> list[bytes]:
    data: list[PartitionData] = []
    for name, batch in zip(names, batches, strict=True):
        producer = Producer(PRODUCER_ID, batch.epoch, batch.base_sequence) if batch.base_sequence >= 0 else NO_PRODUCER
        header, records = record_batch(slab, batch.segments, producer, keeps_empty_values=True)
        data.append(PartitionData(name, batch.partition, records, header))
    return encode_topics(version, data)


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_topics_are_grouped_and_large_batches_are_not_copied(version: int) -> None:
    with new_slab(ROOMY) as slab:
        names = [b"a", b"b", b"a", b"c" * 249, b"a"]
        sizes = [[10, 0], [COPIED_BYTES * 2], [1] * 200, [COPIED_BYTES], [3]]
        batches = [put(slab, number * 3000, each, 5 - 6 * (number == 2)) for number, each in enumerate(sizes)]
        found = produce_topics(slab, version, names, batches, PRODUCER_ID, keeps_empty_values=True)
        assert found == by_parts(slab, version, names, batches)
        assert sum(len(buffer) > COPIED_BYTES for buffer in found) == 2


def test_the_setting_for_empty_values_applies() -> None:
    with new_slab(ROOMY) as slab:
        batch = put(slab, 0, [0])
        both = [produce_topics(slab, 9, [b"t"], [batch], 1, keeps_empty_values=keeps) for keeps in (False, True)]
        assert both[0] != both[1]


def test_a_damaged_segment_raises() -> None:
    with new_slab(ROOMY) as slab:
        batch = put(slab, 0, [1])
        damaged = batch._replace(segments=(batch.segments[0]._replace(generation=99),))
        with pytest.raises(SlabError):
            produce_topics(slab, 9, [b"t", b"u"], [put(slab, 1, [1]), damaged], 1, keeps_empty_values=False)


def test_a_request_without_batches_has_no_topics() -> None:
    with new_slab(ROOMY) as slab:
        assert produce_topics(slab, 9, [], [], 1, keeps_empty_values=False) == encode_topics(9, [])
        assert produce_topics(slab, 3, [], [], 1, keeps_empty_values=False) == encode_topics(3, [])
