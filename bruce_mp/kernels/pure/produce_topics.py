"""Encode the topics of a produce request, with an uncompressed record batch for each partition.

The layout is that of `protocol/kafka/produce_request.py`, versions 3 and later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.kernels.pure.encode import record_batch
from bruce_mp.protocol.kafka.kafka_types import PartitionData
from bruce_mp.protocol.kafka.produce_request import encode_topics
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch

__all__ = ["produce_topics"]


def produce_topics(
    slab: Slab,
    version: int,
    names: Sequence[bytes],
    batches: Sequence[SentBatch],
    producer_id: int,
    *,
    keeps_empty_values: bool,
) -> list[bytes]:
    """Return the bytes of a request's topics, as consecutive buffers: see `encode_topics`.

    Each batch is for a different partition; `names` has the topic name of each.  A batch without sequence numbers has
    no producer.  For `keeps_empty_values` see `encode.encode`, for errors `record_batch`.
    """
    data: list[PartitionData] = []
    for name, batch in zip(names, batches, strict=True):
        is_numbered = batch.base_sequence >= 0
        producer = Producer(producer_id, batch.epoch, batch.base_sequence) if is_numbered else NO_PRODUCER
        header, records = record_batch(slab, batch.segments, producer, keeps_empty_values=keeps_empty_values)
        data.append(PartitionData(name, batch.partition, records, header))
    return encode_topics(version, data)
