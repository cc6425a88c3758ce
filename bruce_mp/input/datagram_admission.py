"""Admission of datagrams: the path of a batch from the landing zone into lanes, counted in one transaction.

A batch is the datagrams that one receive has stored in the landing zone of the slab.

The order of the steps makes a crash harmless at any point.  First the input appends the messages to lanes as records,
each whole or not at all.  Then one transaction counts the batch and empties the landing zone.  Then the input hands
the records over to the router.  If the input dies before the transaction, its successor finds the batch in the landing
zone.  The arrival numbers in the records tell the successor which datagrams are in lanes already.

If the configuration has allow lists or quotas, the input first checks the senders of a batch.  It appends no refused
datagram, and the transaction counts the refused ones, too.

A datagram longer than `max_size` is malformed, although the part that the kernel has stored may look like a valid
message.  The parser treats such a datagram as empty (`landing_zone.landed_extents_within`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.input.ingest_counters import (
    REFUSED_COUNTERS,
    increments_of_batch,
    processed_counter,
    report_no_room,
    report_refused,
    report_rejected,
    unappended_count,
)
from bruce_mp.input.sender_quotas import AdmissionDecision, decide_admission
from bruce_mp.input.timestamps import ClockWatch
from bruce_mp.kernels import DatagramIntake, DatagramReceiver, PlainCounters
from bruce_mp.slab import landing_zone
from bruce_mp.slab.file import Geometry
from bruce_mp.slab.recovery import arrivals_in_chunks, close_open_runs, partition_counts_from, sweep_filled
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections import Counter as Tally  # `Counter` is the enum of telemetry
    from collections.abc import Collection

    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.errors import DiscardReason
    from bruce_mp.input.sender_quotas import SenderQuotas
    from bruce_mp.kernels import Coalescing, Ingested, Lanes
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["DatagramAdmission"]


_COUNTERS_WITHOUT_DISCARDS: Final = PlainCounters(
    Counter.MsgReceived,
    Counter.UnixDgInputAgentForwardMsg,
    Counter.InputAgentProcessAnyPartitionMsg,
    Counter.InputAgentProcessPartitionKeyMsg,
)
"""The counters that `DatagramIntake` raises itself for a batch if all messages of the batch are in lanes."""


class DatagramAdmission:
    """Admits datagrams from the landing zone to the lanes.  `max_size` is the largest size of a datagram."""

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        lanes: Lanes,
        reporter: DiscardReporter,
        *,
        max_size: int,
        quotas: SenderQuotas,
    ) -> None:
        self._slab = slab
        self._row = row
        self._lanes = lanes
        self._reporter = reporter
        slot_size = slab.geometry.landing_slot_size
        self._max_size = min(max_size, slot_size)
        has_earlier_limit = slot_size > Geometry.for_size(0, max_size).landing_slot_size
        self._max_landed_size = slot_size if has_earlier_limit else self._max_size
        """The largest size of a datagram in the landing zone of a dead predecessor: an earlier daemon with a larger
        limit may have created the slab and received the datagram."""
        self._quotas = quotas
        self._clocks = ClockWatch(lanes, row)
        self._receiver = DatagramReceiver(slab)
        self._intake = DatagramIntake(
            slab, self._receiver, lanes, row, max_size=self._max_size, counters=_COUNTERS_WITHOUT_DISCARDS
        )

    def apply_config(self, coalescing: Coalescing) -> None:
        self._intake.apply_config(coalescing)

    def receive(self, descriptor: int, limit: int, now_ms: int, until_ms: int = 0) -> int:
        """Receive at most `limit` messages from a socket and return their number.

        The call may wait for messages until `until_ms`; see `DatagramIntake.run`.  Raise OSError for a broken socket.
        """
        # The clock watch uses the credentials to find senders with wrong clocks.
        if self._quotas.is_active or self._clocks.needs_credentials(now_ms):
            return self._receive_with_credentials(descriptor, limit, now_ms)
        committed_count, uncommitted_count, ingested = self._intake.run(descriptor, limit, now_ms, until_ms)
        if ingested is not None:  # a batch with discards or replaced timestamps, which the intake does not count
            self._commit(uncommitted_count, ingested)
        self._clocks.record_replaced_timestamps(peer_of=lambda _: None, now_ms=now_ms)  # unknown without credentials
        return committed_count + uncommitted_count

    def _receive_with_credentials(self, descriptor: int, limit: int, now_ms: int) -> int:
        landing_zone.request_credentials(self._slab, min(limit, self._slab.geometry.landing_slots))
        count = self._receiver.receive(descriptor, limit)
        if count:
            self.admit(count, now_ms)
        return count

    def admit(self, count: int, now_ms: int) -> None:
        """Admit the first `count` datagrams of the landing zone, and count them."""
        self._admit(count, now_ms, self._max_size)

    def _admit(self, count: int, now_ms: int, max_size: int, skip: frozenset[int] = frozenset()) -> None:
        """Admit and count datagrams of up to `max_size` bytes.

        `skip` has the arrival numbers of the datagrams that a dead predecessor has appended to lanes: they are counted,
        but not appended again.
        """
        self._row.begin_batch()
        first_arrival = self._first_arrival
        decision = AdmissionDecision()
        if self._quotas.is_active:
            skipped_slots = {arrival - first_arrival for arrival in skip}
            decision = decide_admission(self._quotas, self._slab, count, now_ms, skipped_slots)
        elif self._clocks.needs_credentials(now_ms):  # refuse no sender, but find those with wrong clocks
            decision = AdmissionDecision(landing_zone.senders_of(self._slab, count))
        omitted = skip.union(first_arrival + slot for slot in decision.refused)
        self._commit(count, self._lanes.ingest_landed(count, max_size, now_ms, omitted), skip, decision)
        decision.record(self._quotas, now_ms)
        self._clocks.record_replaced_timestamps(lambda arrival: decision.peer_of(arrival - first_arrival), now_ms)

    @property
    def _first_arrival(self) -> int:
        """Return the arrival number of the first datagram in the landing zone."""
        return self._slab.longs[landing_zone.base_at(self._slab) >> 3]

    def _commit(
        self,
        count: int,
        ingested: Ingested,
        skip: frozenset[int] = frozenset(),
        decision: AdmissionDecision | None = None,
    ) -> None:
        """Report the discarded messages of a batch; then count the batch and empty the landing zone in one transaction.

        `count` and `skip` are as in `_admit`; `decision` is None if the senders were not checked.
        """
        decision = decision or AdmissionDecision()
        view, first_arrival = self._slab.view, self._first_arrival
        needs_extents = unappended_count(ingested) or skip or decision.refused
        extents = landing_zone.landed_extents(self._slab) if needs_extents else []  # by slot
        for rejection in ingested.rejections:
            report_rejected(self._reporter, rejection, view, extents[rejection.slot], decision.peer_of(rejection.slot))
        for dropped in ingested.no_room:
            report_no_room(self._reporter, dropped, view, extents[dropped.arrival - first_arrival], dropped.reason)
        for slot, reason in decision.refused.items():
            report_refused(self._reporter, reason, decision.peer_of(slot), view, extents[slot])
        increments = _increments_of(count, ingested, decision.refused.values())
        if skip:  # a predecessor appended these messages, but did not count them
            increments.update(processed_counter(view[extents[arrival - first_arrival][0] :]) for arrival in skip)
        positive = +increments  # without zeros
        # The reporter has prepared copies of the discarded messages for the discard log.
        self._row.commit_landed(count, positive | self._reporter.copy_increments())
        self._reporter.queue_copies()

    def recover(self, owner: int, now_ms: int) -> list[Segment]:
        """Recover the messages of a dead predecessor, which also had input row `owner`; return the runs to publish.

        Close the open runs of the row, and admit the datagrams in the landing zone.
        """
        close_open_runs(self._slab, owner)
        landed_count = len(landing_zone.landed_lengths(self._slab))
        if landed_count:
            # A message's key and the topic's partition count choose the lane.  Use the predecessor's counts, so that
            # messages of a key stay in one lane.
            self._lanes.restore_partition_counts(partition_counts_from(self._slab, self._first_arrival))
            skip = arrivals_in_chunks(self._slab, self._first_arrival)
            self._admit(landed_count, now_ms, self._max_landed_size, skip)
        self._lanes.close_all()
        self._lanes.drain_closed()  # not published from here: the sweep finds these runs and those of the predecessor
        return [found.segment for found in sweep_filled(self._slab)]


def _increments_of(received: int, ingested: Ingested, refusals: Collection[DiscardReason]) -> Tally[int]:
    """Return the amount by which a batch of `received` datagrams raises each counter.

    `refusals` has the discard reason of each datagram of a refused sender; `ingested` has only the other datagrams.
    """
    increments = increments_of_batch(received, ingested, [dropped.reason for dropped in ingested.no_room])
    increments[Counter.UnixDgInputAgentForwardMsg] += received - unappended_count(ingested) - len(refusals)
    for reason in refusals:
        increments[discarded(reason)] += 1
        increments[REFUSED_COUNTERS[reason]] += 1
    return increments
