"""Record batches for tests, header and records together."""

from __future__ import annotations

from bruce_mp.protocol.kafka.compression import Codec
from bruce_mp.protocol.kafka.record_batch import NO_PRODUCER, Producer, batch_header

__all__ = ["whole_batch"]


def whole_batch(
    records: bytes,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
    *,
    codec: Codec = Codec.NONE,
    producer: Producer = NO_PRODUCER,
) -> bytes:
    """Return a batch as it is sent; see `batch_header`."""
    return batch_header(records, count, first_timestamp, max_timestamp, codec=codec, producer=producer) + records
