"""Decoded records of stored batches, which tests compare with the sent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bruce_mp.devbroker.batch import SEQUENCE_MASK, BatchHead, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StoredRecord", "decode_batches"]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A stored record. `timestamp` is in ms; producer fields are -1 without idempotence."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    producer_id: int
    producer_epoch: int
    sequence: int


def decode_batches(batches: bytes) -> Iterator[StoredRecord]:
    """Yield the records of consecutive stored batches, with any of Kafka's codecs. Raise RefusedError for damage."""
    at = 0
    while at < len(batches):
        head = BatchHead.unpack(batches, at)
        for record in records_of(batches[at : at + head.size]):
            sequence = (head.base_sequence + record.offset - head.base_offset) & SEQUENCE_MASK
            yield StoredRecord(
                record.offset, record.timestamp, record.key, record.value, tuple(record.headers),
                head.producer_id, head.producer_epoch, sequence if head.base_sequence >= 0 else -1,
            )  # fmt: skip
        at += head.size
