"""Idempotence checks of a partition, from the last batches of each producer.

For each partition and producer id, a broker remembers the producer epoch and the last five batches. It checks a new
batch in this order, as Kafka does:

1. A batch with the same epoch, first sequence and last sequence as a remembered batch is a *duplicate*. The broker
   acknowledges the duplicate with the offset of the remembered batch, and does not append it.
2. A batch with an older epoch than the remembered one is refused with error code 47.
3. The first batch of a newer epoch must have the first sequence 0, or it is refused with error code 45.
4. Within an epoch, the first sequence of a batch must follow the last sequence of the batch before, or the batch is
   refused with error code 45. 0 follows 2^31-1.
5. The first batch of an unknown producer may have any first sequence, because the broker may have lost the producer's
   state when it removed old records (KIP-360).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from bruce_mp.devbroker.batch import SEQUENCE_MASK, BatchHead
from bruce_mp.devbroker.codes import Code, RefusedError

__all__ = ["REMEMBERED_BATCHES", "AppendedSequence", "ProducerStates"]

REMEMBERED_BATCHES: Final = 5  # for each producer, as in Kafka; so a producer must have at most 5 requests in flight


class AppendedSequence(NamedTuple):
    """The sequence numbers of an appended batch, its base offset, and its largest timestamp in ms."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    max_timestamp: int


class ProducerEntry(NamedTuple):
    """Epoch and last batches of one producer in one partition."""

    epoch: int
    recent: deque[AppendedSequence]
    """The batches of this epoch, the newest last; at least one."""


class ProducerStates:
    """State of all producers of one partition. A batch without a producer id passes all checks."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}

    def find_original(self, head: BatchHead) -> AppendedSequence | None:
        """Return the remembered batch of which `head` is a duplicate, or None if there is none."""
        producer = self._producers.get(head.producer_id)
        if producer is None or producer.epoch != head.producer_epoch:
            return None
        wanted = (head.base_sequence, head.last_sequence)
        return next((a for a in producer.recent if (a.first_sequence, a.last_sequence) == wanted), None)

    def check(self, head: BatchHead) -> None:
        """Raise RefusedError if a batch that is no duplicate has an old epoch or an unexpected first sequence."""
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
        """Remember the batch with this header, which was appended at `base_offset`."""
        if head.producer_id < 0:
            return
        producer = self._producers.get(head.producer_id)
        if producer is None or producer.epoch != head.producer_epoch:
            producer = ProducerEntry(head.producer_epoch, deque(maxlen=REMEMBERED_BATCHES))
            self._producers[head.producer_id] = producer
        producer.recent.append(
            AppendedSequence(head.base_sequence, head.last_sequence, base_offset, head.max_timestamp)
        )
