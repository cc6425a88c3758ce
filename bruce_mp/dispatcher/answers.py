"""What an answer does to a batch and its queue: the error table, applied."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.errors import DiscardReason
from bruce_mp.protocol.error_actions import Action, ErrorRow, action_for
from bruce_mp.slab.layout import State
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.dispatcher.batches import BatchMaker
    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.protocol.kafka_types import PartitionAck
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import SentBatch
    from bruce_mp.slab.rows import Row
    from bruce_mp.telemetry.discards import DiscardReporter

__all__ = ["Answers"]

_LOG = logging.getLogger(__name__)
_OUT_OF_ORDER = 45
_LAST_LISTED = 133
_SAMPLE = 256


class Answers:
    """Settles batches and moves queues as the broker's answers demand."""

    def __init__(
        self, slab: Slab, row: Row, reporter: DiscardReporter, maker: BatchMaker, attempt_limit: int | None
    ) -> None:
        self._slab = slab
        self._row = row
        self._reporter = reporter
        self._maker = maker
        self._attempt_limit = attempt_limit

    def answer(self, queue: PartitionQueue, batch: SentBatch, ack: PartitionAck, topic: bytes) -> None:
        """Do what the table says for the answer to a batch that has just left `queue.in_flight`."""
        row = action_for(ack.error)
        self._count(ack.error)
        if row.action is Action.OK:
            queue.retries = 0
            self.deliver(batch)
            return
        if ack.error == _OUT_OF_ORDER and queue.failed:
            # Not trouble of its own: the broker refuses what is behind a refused batch.
            queue.failed.append(batch)
            return
        _LOG.warning(
            "Topic %s, partition %d: the broker answered %s (%d) for %d messages: %s.",
            topic.decode("utf-8", "replace"), batch.partition, row.name, row.code, batch.records, row.action.value,
        )  # fmt: skip
        self._refuse(queue, batch, row, topic)

    def _count(self, error: int) -> None:
        listed = error if -1 <= error <= _LAST_LISTED else _LAST_LISTED + 2
        self._row.add(Counter.AckErrorFirst + 1 + listed)

    def _refuse(self, queue: PartitionQueue, batch: SentBatch, row: ErrorRow, topic: bytes) -> None:
        if row.action is Action.SPLIT and batch.records > 1:
            queue.failed += self._maker.halve(batch)
            queue.drain()
        elif row.action in {Action.DISCARD, Action.FATAL_FOR_TOPIC, Action.SPLIT}:
            self._row.add(Counter.ConnectorGotDiscardAck)
            self._discard(queue, batch, DiscardReason.KAFKA_ERROR_ACK, topic)
        elif row.counts_as_attempt and self._exceeds(self._maker.count_attempt(batch), row):
            self._row.add(Counter.DiscardOnFailedDeliveryAttemptLimit, batch.records)
            self._discard(queue, batch, DiscardReason.DELIVERY_ATTEMPT_LIMIT, topic)
        else:
            self._send_again(queue, batch, row, topic)

    def _exceeds(self, attempts: int, row: ErrorRow) -> bool:
        limits = [limit for limit in (row.attempt_limit, self._attempt_limit) if limit is not None]
        return bool(limits) and attempts > min(limits)

    def _send_again(self, queue: PartitionQueue, batch: SentBatch, row: ErrorRow, topic: bytes) -> None:
        queue.failed.append(batch)
        queue.drain()
        if row.action is Action.PAUSE_AND_REROUTE:
            self._row.add(Counter.ConnectorGotPauseAck)
            queue.pause = True
        else:
            self._row.add(Counter.ConnectorGotResendAck)
        if row.action is Action.BUMP_EPOCH and self._maker.idempotent:
            queue.bump = True
        if row.may_duplicate and not self._maker.recognised:
            self._note_duplicates([batch], topic)

    def deliver(self, batch: SentBatch) -> None:
        """The broker has the batch."""
        self._row.settle(batch.segments, State.DELIVERED, 0, {Counter.MsgDelivered: batch.records})
        self._row.add(Counter.ConnectorGotSuccessfulAck)

    def _discard(self, queue: PartitionQueue, batch: SentBatch, reason: DiscardReason, topic: bytes) -> None:
        """Give a batch up.  Its sequence numbers are given back; if later ones are in use, the epoch is bumped."""
        for segment in batch.segments:
            span = kernels.time_span(self._slab, segment)
            self._reporter.note(
                reason,
                topic=topic,
                timestamp=span.earliest,
                max_timestamp=span.latest,
                sample=kernels.sample(self._slab, segment, _SAMPLE),
                count=segment.records,
            )
        if queue.failed or not self._maker.take_back(batch):
            queue.bump = True
            queue.drain()
        self._row.settle(batch.segments, State.DISCARDED, reason, {discarded(reason): batch.records})

    def renumber(self, queue: PartitionQueue, topic: bytes) -> None:
        """After draining: if the epoch has to be bumped, number what will be sent again anew."""
        if not queue.bump:
            return
        queue.bump = False
        self._maker.bump_epoch(queue.topic, queue.partition)
        batches = list(queue.resend)
        queue.resend.clear()
        queue.resend.extend(self._maker.renumber(batch) for batch in batches)
        _LOG.warning(
            "Topic %s, partition %d: took the next producer epoch; %d batches were numbered anew.",
            topic.decode("utf-8", "replace"), queue.partition, len(batches),
        )  # fmt: skip

    def doubt(self, batches: Iterable[SentBatch], topic: bytes) -> None:
        """Batches whose answer will never come; the broker may have them."""
        if not self._maker.recognised:
            self._note_duplicates(batches, topic)

    def _note_duplicates(self, batches: Iterable[SentBatch], topic: bytes) -> None:
        for batch in batches:
            self._row.add(Counter.PossibleDuplicateMsg, batch.records)
            for segment in batch.segments:
                span = kernels.time_span(self._slab, segment)
                self._reporter.note_duplicates(topic, segment.records, span.earliest, span.latest)
