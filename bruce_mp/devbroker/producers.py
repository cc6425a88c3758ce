"""Idempotence checks of a partition, from the last batches of each producer.

For each (partition, producer id) a broker remembers the epoch and the last five batches. In this order, as in Kafka:

1. a batch with the epoch, first and last sequence of a remembered one is a *duplicate*: it is acknowledged with the
   offset of the original and not appended;
2. an epoch older than the last seen is refused (error code 47);
3. a newer epoch must start at sequence 0 (else 45);
4. within an epoch the first sequence must follow the last one before it (else 45), 0 follows 2^31-1;
5. an unknown producer may start anywhere: its state may have been lost with old records (KIP-360).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from bruce_mp.devbroker.batch import SEQUENCE_MASK, BatchHead
from bruce_mp.devbroker.codes import Code, RefusedError

__all__ = ["REMEMBERED", "AppendedSequence", "ProducerStates"]

REMEMBERED: Final = 5  # Kafka's number, which limits an idempotent producer to five requests in flight


class AppendedSequence(NamedTuple):
    """The sequence numbers of an appended batch, its base offset, and its largest timestamp in ms."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp: int


class ProducerEntry(NamedTuple):
    """Last batches of one producer in one partition; never empty in the table."""

    epoch: int
    recent: deque[AppendedSequence]


class ProducerStates:
    """State of all producers of one partition. Batches without a producer id are not checked."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}

    def original_of(self, head: BatchHead) -> AppendedSequence | None:
        """Return the remembered batch that `head` repeats, or None."""
        producer = self._producers.get(head.producer_id)
        if producer is None or producer.epoch != head.producer_epoch:
            return None
        wanted = (head.base_sequence, head.last_sequence)
        return next((a for a in producer.recent if (a.first_sequence, a.last_sequence) == wanted), None)

    def check(self, head: BatchHead) -> None:
        """Raise RefusedError for an old epoch (47), and for a gap or a repetition too old to be remembered (45)."""
        producer = self._producers.get(head.producer_id)
        if producer is None:
            return
        if head.producer_epoch < producer.epoch:
            text = f"Producer {head.producer_id} is at epoch {producer.epoch}, not {head.producer_epoch}."
            raise RefusedError(Code.INVALID_PRODUCER_EPOCH, text)
        is_new_epoch = head.producer_epoch > producer.epoch
        expected = 0 if is_new_epoch else (producer.recent[-1].last_sequence + 1) & SEQUENCE_MASK
        if head.base_sequence != expected:
            text = f"Producer {head.producer_id} sent sequence {head.base_sequence}, expected was {expected}."
            raise RefusedError(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, text)

    def remember(self, head: BatchHead, base_offset: int) -> None:
        """Remember `head`, which was appended at `base_offset`."""
        if head.producer_id < 0:
            return
        producer = self._producers.get(head.producer_id)
        if producer is None or producer.epoch != head.producer_epoch:
            producer = ProducerEntry(head.producer_epoch, deque(maxlen=REMEMBERED))
            self._producers[head.producer_id] = producer
        producer.recent.append(
            AppendedSequence(head.base_sequence, head.last_sequence, base_offset, head.max_timestamp)
        )
