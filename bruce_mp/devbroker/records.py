"""Decoded records of stored batches, which tests compare with the sent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bruce_mp.devbroker.batch import HEADER, SEQUENCE_MASK, BatchHead, records_of

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
    """Yield the records of consecutive stored batches, with any of Kafka's codecs.

    Raises:
        RefusedError: a batch cannot be read.
    """
    at = 0
    while at < len(batches):
        head = BatchHead._make(HEADER.unpack_from(batches, at))
        yield from decode_batch(head, batches[at : at + head.size])
        at += head.size


def decode_batch(head: BatchHead, raw: bytes) -> Iterator[StoredRecord]:
    for record in records_of(raw):
        yield StoredRecord(
            offset=record.offset,
            timestamp=record.timestamp,
            key=record.key,
            value=record.value,
            headers=tuple(record.headers),
            producer_id=head.producer_id,
            producer_epoch=head.producer_epoch,
            sequence=sequence_of(head, record.offset),
        )


def sequence_of(head: BatchHead, offset: int) -> int:
    if head.base_sequence < 0:
        return -1
    return (head.base_sequence + offset - head.base_offset) & SEQUENCE_MASK
