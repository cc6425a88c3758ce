"""Handling of produce responses: settles batches, and applies the error table to batches and their queues.

If the sequence numbers have a gap, the broker refuses all following batches.  A discarded batch leaves a gap:

* If the broker has certainly not written the batch and no earlier batch is in doubt, the dispatcher renumbers the
  following batches from the gap.
* Otherwise the following batches keep their numbers.  The broker accepts them if it has written the discarded batch.
  If not, it refuses them as out of order, and the dispatcher renumbers them.

A batch is *in doubt* if the broker may have written it although no response confirms this: after a lost connection,
the death of a dispatcher, or an error with `may_duplicate`.  Then its first header in the slab has FLAG_IN_DOUBT.  If a
batch in doubt is discarded, the reason is POSSIBLY_DELIVERED, and the following batch gets FLAG_AFTER_GAP.  If the
broker refuses the following batch as out of order, this flag shows the cause, also to another dispatcher.

The dispatcher reuses sequence numbers only if no request with them can still arrive over an abandoned connection.
Otherwise it bumps (increments) the partition's producer epoch, so that the broker refuses such a late request.

One transaction settles several acknowledged batches: it marks all their records as delivered, and raises the counters
of messages and delays.  The sums by topic (`traffic`) are not part of the transaction, so a crash may lose the last
additions to them.  Records that were damaged after sending are quarantined, and all others are settled.
"""

from __future__ import annotations

import logging
from itertools import chain
from typing import TYPE_CHECKING, Final

from bruce_mp import kernels
from bruce_mp.discards.settlement import Discards
from bruce_mp.dispatcher.connection_status import PartitionErrors
from bruce_mp.dispatcher.refused_records import describe, restamp
from bruce_mp.errors import DiscardReason, SlabError
from bruce_mp.pipeline.corruption import is_undamaged, quarantine, without_damaged
from bruce_mp.protocol.kafka.error_actions import ERROR_TABLE, Action, ErrorRow, error_row
from bruce_mp.slab.layout import FLAG_AFTER_GAP, FLAG_IN_DOUBT
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.telemetry.clock import steady_ms
from bruce_mp.telemetry.counters import Counter, response_counter
from bruce_mp.telemetry.latency_histogram import BOUNDS_MS
from bruce_mp.telemetry.traffic import MAX_TOPICS, TrafficSums

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.dispatcher.queues import PartitionQueue
    from bruce_mp.dispatcher.record_batches import BatchBuilder
    from bruce_mp.protocol.kafka.kafka_types import PartitionAck
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.recovery import BuiltBatch
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment
    from bruce_mp.slab.tables import TopicTable

__all__ = ["ResponseHandler"]

log = logging.getLogger(__name__)
_OUT_OF_ORDER: Final = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER
_OPERATOR_ACTIONS: Final = frozenset({Action.FATAL_FOR_TOPIC, Action.AWAIT_PERMISSION})
_FINAL_ACTIONS: Final = frozenset(
    {Action.DISCARD, Action.FATAL_FOR_TOPIC, Action.SEND_UNNUMBERED, Action.SEND_UNCOMPRESSED}
)
"""Actions that discard a batch, unless `_downgrade` returns True."""
_RECORD_ACTIONS: Final = frozenset({Action.HALVE, Action.RESTAMP})
"""Actions for errors of single records."""


class ResponseHandler:
    """Settles batches and changes the state of queues according to the broker's responses."""

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        reporter: DiscardReporter,
        builder: BatchBuilder,
        *,
        topics: TopicTable,
        retry_limit: int | None,
    ) -> None:
        self._slab = slab
        self._row = row
        self._discards = Discards(slab, row, reporter)
        self._builder = builder
        self._topics = topics
        self.retry_limit = retry_limit
        self.partition_errors = PartitionErrors(steady_ms)
        counters = kernels.DeliveryCounters(Counter.MsgDelivered, Counter.AckDelayFirst, Counter.AckDelayMs)
        self._deliveries = kernels.Deliveries(slab, row, topics, BOUNDS_MS, counters, max_topics=MAX_TOPICS)
        self.traffic = TrafficSums(self._deliveries)
        self.uncompressed_partitions: set[tuple[bytes, int]] = set()
        """The (topic, partition) pairs for which the leader refuses compressed batches."""

    def on_accepted(self, batches: Sequence[BuiltBatch], error: int = 0) -> None:
        """Settle batches that the broker has written.

        `error` is 0, or the error code for batches that the broker had written already.
        """
        self._row.add(response_counter(error), len(batches))
        for batch in batches if self.partition_errors else ():
            self.partition_errors.clear(self._topics.name_of(batch.topic), batch.partition)
        self.settle(batches)

    def settle(self, batches: Sequence[BuiltBatch]) -> None:
        """Settle batches as delivered; unlike `on_accepted`, count no response (with acks = 0 there is none)."""
        while batches:
            try:
                count = self._deliveries.settle(batches, steady_ms())
            except SlabError:
                self._settle_undamaged(batches)
                return
            self._row.add(Counter.ConnectorGotSuccessfulAck, count)
            batches = batches[count:]

    def _settle_undamaged(self, batches: Iterable[BuiltBatch]) -> None:
        for batch in batches:
            undamaged = without_damaged(self._slab, self._row, batch.segments)
            if undamaged:
                self._deliveries.settle([batch._replace(segments=tuple(undamaged))], steady_ms())
                self._row.add(Counter.ConnectorGotSuccessfulAck)

    def apply_error(self, queue: PartitionQueue, batch: BuiltBatch, ack: PartitionAck, topic: bytes) -> None:
        """Apply the error table to a batch in flight with an error response, and to the batch's queue."""
        rule = error_row(ack.error)
        if rule.action is Action.OK:
            self.on_accepted([batch], ack.error)
            queue.on_accepted(batch)
            return
        self._row.add(response_counter(ack.error))
        queue.in_flight.remove(batch)
        if ack.error == _OUT_OF_ORDER and self._prepare_renumbering(queue, batch):
            queue.failed.append(batch)
            queue.drain()
        else:
            _log_error(batch, rule, topic)
            self.traffic.add_error(topic, rule.name)
            self._on_refused(queue, batch, ack, rule, topic)
        queue.update_doubt()

    def _prepare_renumbering(self, queue: PartitionQueue, batch: BuiltBatch) -> bool:
        """Return True if a batch is out of order only because an earlier batch was refused or discarded.

        After a discard, also set `queue.renumber_from`.
        """
        if queue.failed or queue.renumber_from is not None:
            return True
        has_gap = queue.gap_end is not None or self._builder.has_flag(batch, FLAG_AFTER_GAP)
        if queue.expected_sequence is None:
            # The number that the broker expects is unknown.  So set `in_doubt`, which lets `renumber` bump the epoch.
            if has_gap:
                queue.renumber_from, queue.in_doubt = batch.base_sequence, True
        elif has_gap or queue.expected_sequence != batch.base_sequence:
            queue.renumber_from = queue.expected_sequence
        return queue.renumber_from is not None

    def _on_refused(
        self, queue: PartitionQueue, batch: BuiltBatch, ack: PartitionAck, rule: ErrorRow, topic: bytes
    ) -> None:
        """Decide to resend, change or discard a batch that the broker refused."""
        if rule.action in _OPERATOR_ACTIONS:
            self._topics.store_refusal(batch.topic, rule.code)  # for the health page
        if rule.action in _RECORD_ACTIONS:
            self._on_records_refused(queue, batch, ack, rule, topic)
        elif self._downgrade(queue, batch, rule, topic):
            queue.failed.append(batch)
            queue.drain()
        elif rule.action in _FINAL_ACTIONS:
            self._discard_batch(queue, batch, DiscardReason.KAFKA_ERROR_ACK, topic, rule)
        elif rule.counts_as_retry and self._exceeds_retry_limit(self._builder.count_retry(batch), rule):
            self._row.add(Counter.DiscardOnFailedDeliveryAttemptLimit, batch.records)
            self._discard_batch(queue, batch, DiscardReason.DELIVERY_ATTEMPT_LIMIT, topic, rule)
        else:
            self._retry(queue, batch, rule, topic)

    def _on_records_refused(
        self, queue: PartitionQueue, batch: BuiltBatch, ack: PartitionAck, rule: ErrorRow, topic: bytes
    ) -> None:
        """Replace timestamps of a batch, discard its refused records, or halve the batch.

        If a segment is damaged, only requeue the undamaged segments.
        """
        try:
            if rule.action is Action.HALVE or not self._restamp(queue, batch, ack, topic):
                self._isolate_refused(queue, batch, ack, topic)
        except SlabError as error:
            quarantine(self._row, error)
            queue.drain()
            queue.failed += self.without_damaged(queue, batch)

    def _downgrade(self, queue: PartitionQueue, batch: BuiltBatch, rule: ErrorRow, topic: bytes) -> bool:
        """Stop numbering or compressing a partition's batches if the error demands this.

        Return True if the refused batch is to be sent again.
        """
        if rule.action is Action.SEND_UNNUMBERED and batch.base_sequence >= 0:
            queue.must_stop_numbering = True
            return True
        key = (topic, batch.partition)
        # If an earlier batch has failed, this batch may have been sent before the partition was added to the set.
        if rule.action is Action.SEND_UNCOMPRESSED and (key not in self.uncompressed_partitions or queue.failed):
            self.uncompressed_partitions.add(key)
            return True
        return False

    def _exceeds_retry_limit(self, retry_count: int, rule: ErrorRow) -> bool:
        limits = [limit for limit in (rule.retry_limit, self.retry_limit) if limit is not None]
        return bool(limits) and retry_count > min(limits)

    def _retry(self, queue: PartitionQueue, batch: BuiltBatch, rule: ErrorRow, topic: bytes) -> None:
        """Requeue a batch, to be sent again after a back-off, or after a pause by the dispatcher of the next leader."""
        self.partition_errors.record(topic, batch.partition, rule.name)
        queue.failed.append(batch)
        queue.drain()
        if rule.action is Action.PAUSE_AND_REROUTE:
            self._row.add(Counter.ConnectorGotPauseAck)
            queue.must_pause = True
        else:
            self._row.add(Counter.ConnectorGotResendAck)
            queue.must_back_off = True
        is_numbered = batch.base_sequence >= 0
        needs_new_epoch = rule.action is Action.BUMP_EPOCH and is_numbered
        queue.must_bump_epoch = queue.must_bump_epoch or needs_new_epoch
        if rule.may_duplicate:
            queue.begin_doubt()
            self._builder.set_flag(batch, FLAG_IN_DOUBT)
            if not needs_new_epoch and not self._is_deduplicated(batch):
                self._record_duplicates([batch], topic)

    def _restamp(self, queue: PartitionQueue, batch: BuiltBatch, ack: PartitionAck, topic: bytes) -> bool:
        """Replace the timestamps of the refused records by their arrival times, and requeue the batch.

        Return False if no timestamp was replaced.  If the response does not name the refused records, only a batch of
        one record is changed; `_isolate_refused` halves larger batches until the refused record is alone.
        """
        refused = frozenset(index for index, _ in ack.record_errors) or frozenset([0] if batch.records == 1 else ())
        restamped_count, first_record = restamp(self._slab, batch.segments, refused)
        if not restamped_count:
            return False
        self._row.add(Counter.ConnectorReplaceTimestamp, restamped_count)
        log.warning(
            "Topic %s, partition %d: the broker refuses the timestamps of %d messages (%s): the "
            "dispatcher resends them with the time of their arrival. Correct their sender, or set "
            'timestamps.topics."%s" = "clamp".',
            _decode(topic), batch.partition, restamped_count, first_record, _decode(topic), extra={"about": topic},
        )  # fmt: skip
        queue.failed.append(batch)
        queue.drain()
        return True

    # --- discards ----------------------------------------------------------------------------------------------------

    def _isolate_refused(self, queue: PartitionQueue, batch: BuiltBatch, ack: PartitionAck, topic: bytes) -> None:
        """Discard the refused records that the response names, or halve the batch to find them."""
        is_in_doubt = self._builder.has_flag(batch, FLAG_IN_DOUBT)
        named_indices = [index for index, _ in ack.record_errors]
        rest, refused = self._builder.remove_records(batch, named_indices) if named_indices else (None, [])
        if batch.records == 1:  # the only record is the refused one, even if the response does not name it
            rest, refused = None, list(batch.segments)
        # To remove records splits segments, perhaps into more segments than one transaction can settle.
        segment_count = max(len(refused), len(rest.segments) if rest is not None else 0)
        if is_in_doubt and batch.base_sequence >= 0:
            queue.note_cut(batch)
        if segment_count > MAX_SETTLED_SEGMENTS or not refused:
            queue.failed += self._builder.halve(batch)
            queue.drain()
            return
        for segment in refused:
            log.error(
                "Topic %s, partition %d: discarded %s.",
                _decode(topic), batch.partition, describe(self._slab, segment), extra={"about": topic},
            )  # fmt: skip
        self._record_gap(queue, batch)
        if rest is not None:
            # Number the rest before the discard, or a recovery might take the rest for a part of the previous batch.
            # The rest gets numbers of the refused records, so these must not have them any longer.
            for segment in refused:
                self._builder.clear_sequences(segment, batch.partition)
            self._builder.write_sequences(rest)
            if is_in_doubt:
                self._builder.set_flag(rest, FLAG_IN_DOUBT)
        self._discard(refused, _reason_in_doubt(DiscardReason.KAFKA_ERROR_ACK, is_in_doubt=is_in_doubt), topic)
        queue.failed += [rest] if rest is not None else []

    def _discard_batch(
        self, queue: PartitionQueue, batch: BuiltBatch, reason: DiscardReason, topic: bytes, rule: ErrorRow
    ) -> None:
        """Discard a batch for `reason`, or as POSSIBLY_DELIVERED if the broker may have written it."""
        proves_unwritten = not rule.may_duplicate and rule.code in ERROR_TABLE
        is_in_doubt = not proves_unwritten or self._builder.has_flag(batch, FLAG_IN_DOUBT)
        if is_in_doubt:
            queue.begin_doubt()
            queue.begin_gap(batch)
            following = next(chain(queue.in_flight, queue.resend), None)
            if following is not None:
                self._builder.set_flag(following, FLAG_AFTER_GAP)
        else:
            self._record_gap(queue, batch)
        self._discard(batch.segments, _reason_in_doubt(reason, is_in_doubt=is_in_doubt), topic)

    def without_damaged(self, queue: PartitionQueue, batch: BuiltBatch) -> list[BuiltBatch]:
        """Return [batch of the undamaged segments] for a batch that the broker has not written.

        Return [] if all segments are damaged.  The damaged records lose their sequence numbers.
        """
        self._record_gap(queue, batch)
        undamaged = [segment for segment in batch.segments if is_undamaged(self._slab, segment)]
        for segment in batch.segments:
            if segment not in undamaged:
                self._builder.clear_sequences(segment, batch.partition)
        if not undamaged:
            return []
        rest = batch._replace(segments=tuple(undamaged))
        self._builder.write_sequences(rest)
        return [rest]

    def _record_gap(self, queue: PartitionQueue, batch: BuiltBatch) -> None:
        """Let the queue drain: `batch` leaves a gap in the sequence numbers, because the broker has not written it.

        Later batches get numbers from `batch.base_sequence`, unless an earlier batch has failed or is in doubt.
        """
        queue.drain()
        is_numbered = batch.base_sequence >= 0
        is_expected = is_numbered and queue.expected_sequence in {None, batch.base_sequence}
        has_unsettled_earlier = bool(queue.failed) or queue.in_doubt or self._builder.has_flag(batch, FLAG_AFTER_GAP)
        if is_expected and queue.renumber_from is None and not has_unsettled_earlier:
            queue.renumber_from = batch.base_sequence
        else:
            queue.begin_gap(batch)

    def _discard(self, segments: Iterable[Segment], reason: DiscardReason, topic: bytes) -> None:
        self._row.add(Counter.ConnectorGotDiscardAck)
        self._discards.settle(segments, reason, topic)

    # --- numbers -----------------------------------------------------------------------------------------------------

    def renumber(self, queue: PartitionQueue, topic: bytes) -> None:
        """Renumber the batches in `queue.resend` if needed; call this when the queue is drained."""
        if queue.must_stop_numbering:
            self._stop_numbering(queue, topic)
        elif queue.renumber_from is None and not queue.must_bump_epoch:
            return
        elif queue.renumber_from is None or queue.must_bump_epoch or queue.in_doubt:
            self._bump_epoch(queue, topic)
        else:
            self._builder.set_next_sequence(queue.topic, queue.partition, queue.renumber_from)
        queue.resend = [self._builder.renumber(batch) for batch in queue.resend]
        queue.renumber_from = queue.gap_end = queue.cut_end = None
        queue.must_bump_epoch = queue.must_stop_numbering = False

    def skip_sequence_gap(self, queue: PartitionQueue) -> None:
        """Bump the producer epoch of a queue that goes back to the router, if its sequence numbers may have a gap.

        If the queue has built batches, no bump is needed, because the first batch has FLAG_AFTER_GAP.
        """
        if queue.gap_end is not None and not queue.resend and not queue.failed:
            self._builder.bump_epoch(queue.topic, queue.partition)

    def _stop_numbering(self, queue: PartitionQueue, topic: bytes) -> None:
        self._record_renumbered(queue, topic)
        self._builder.stop_numbering(queue.topic, queue.partition)
        queue.expected_sequence = None
        log.error(
            "Topic %s, partition %d: its message format has no sequence numbers; its messages are delivered "
            "at least once. Raise the topic's message.format.version and restart the daemon.",
            _decode(topic), queue.partition, extra={"about": topic},
        )  # fmt: skip

    def _bump_epoch(self, queue: PartitionQueue, topic: bytes) -> None:
        # At a gap the broker cannot have written the batches with their old numbers, unless the first is a part.
        if queue.must_bump_epoch or queue.begins_with_part:
            self._record_renumbered(queue, topic)
        self._builder.bump_epoch(queue.topic, queue.partition)
        queue.expected_sequence = None
        log.warning(
            "Topic %s, partition %d: the dispatcher bumps the producer epoch and renumbers %d batches.",
            _decode(topic), queue.partition, len(queue.resend), extra={"about": topic},
        )  # fmt: skip
        if not self._builder.is_numbered(queue.topic, queue.partition):
            log.error(
                "Topic %s, partition %d has used all epochs of its producer id; its messages are delivered at least "
                "once until the daemon is restarted.", _decode(topic), queue.partition, extra={"about": topic},
            )  # fmt: skip

    def _record_renumbered(self, queue: PartitionQueue, topic: bytes) -> None:
        """Record the batches in doubt as possible duplicates: the broker cannot recognize them by their new numbers."""
        self._record_duplicates(
            [batch for batch in queue.resend if self._builder.has_flag(batch, FLAG_IN_DOUBT)], topic
        )

    def mark_in_doubt(self, batches: Sequence[BuiltBatch], topic: bytes) -> None:
        """Mark batches as in doubt; record them as possible duplicates unless the broker detects repeated batches."""
        for batch in batches:
            self._builder.set_flag(batch, FLAG_IN_DOUBT)
        self._record_duplicates([batch for batch in batches if not self._is_deduplicated(batch)], topic)

    def _is_deduplicated(self, batch: BuiltBatch) -> bool:
        return batch.base_sequence >= 0 and self._builder.broker_deduplicates

    def _record_duplicates(self, batches: Iterable[BuiltBatch], topic: bytes) -> None:
        for batch in batches:
            self._discards.record_duplicates(batch.segments, topic)


def _reason_in_doubt(reason: DiscardReason, *, is_in_doubt: bool) -> DiscardReason:
    return DiscardReason.POSSIBLY_DELIVERED if is_in_doubt else reason


def _log_error(batch: BuiltBatch, rule: ErrorRow, topic: bytes) -> None:
    log.log(
        logging.ERROR if rule.action in _OPERATOR_ACTIONS else logging.WARNING,
        "Topic %s, partition %d: the broker answered %s (%d) for %d messages (%s): %s.",
        _decode(topic), batch.partition, rule.name, rule.code, batch.records, rule.reason, rule.action.value,
        extra={"about": (topic, rule.code)},
    )  # fmt: skip


def _decode(topic: bytes) -> str:
    return topic.decode("utf-8", "replace")
