"""The path of a batch of datagrams through the input: from the landing zone into lanes, counted in one transaction.

The order of the steps makes a crash harmless at any point.  First the input appends the records to lanes, each whole or
not at all.  Then one transaction counts the batch and empties the landing zone.  Then the router hears of the runs.
Until the transaction, recovery finds the batch in the landing zone, and the arrival numbers show which datagrams were
copied.

Where allow lists or quotas apply, the input judges every batch before it goes into lanes.  The transaction that lands
the batch also counts the refused datagrams.

A datagram longer than the limit is malformed whatever its bytes say, because the kernel may have cut it to a valid
message.  For the parser it has no bytes at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bruce_mp.input.ingest_counters import (
    RECOGNISED,
    REFUSED,
    refused,
    report,
    report_no_room,
    report_refused,
    tally_ingested,
)
from bruce_mp.input.quotas import AdmissionDecision, decide_admission
from bruce_mp.input.timestamps import ClockWatch
from bruce_mp.kernels import DatagramIntake, DatagramReceiver, PlainCounters
from bruce_mp.slab import landing
from bruce_mp.slab.recovery import arrivals_from, close_open_runs, cuts_from, sweep_filled
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from bruce_mp.discards.reporter import DiscardReporter
    from bruce_mp.errors import DiscardReason
    from bruce_mp.input.quotas import SenderQuotas
    from bruce_mp.kernels import Coalescing, Ingested, Lanes
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["DatagramAdmission"]


_PLAIN: Final = PlainCounters(
    Counter.MsgReceived,
    Counter.UnixDgInputAgentForwardMsg,
    Counter.InputAgentProcessAnyPartitionMsg,
    Counter.InputAgentProcessPartitionKeyMsg,
)


class DatagramAdmission:
    """Admits datagrams from the landing zone to the lanes.

    `longest` is the largest size of a datagram.  Without `senders` there are no allow lists and no quotas.
    """

    def __init__(
        self,
        slab: Slab,
        row: ProcessRow,
        lanes: Lanes,
        reporter: DiscardReporter,
        *,
        longest: int,
        senders: SenderQuotas | None = None,
    ) -> None:
        self._slab = slab
        self._row = row
        self._lanes = lanes
        self._reporter = reporter
        self._longest = min(longest, slab.geometry.landing_slot_size)
        self._senders = senders
        self._clocks = ClockWatch(lanes, row)
        self._receiver = DatagramReceiver(slab)
        self._intake = DatagramIntake(slab, self._receiver, lanes, row, longest=self._longest, counters=_PLAIN)

    def apply_config(self, coalescing: Coalescing) -> None:
        """Apply new limits for sleeps between receives."""
        self._intake.apply_config(coalescing)

    def receive(self, descriptor: int, limit: int, now_ms: int, until_ms: int = 0) -> int:
        """Receive at most `limit` messages from a socket and return their number.

        The call may wait for more until `until_ms`, see `DatagramIntake`.  Raises OSError when the socket is broken.
        """
        if (self._senders is not None and self._senders.matter) or self._clocks.is_searching(now_ms):
            return self._take_judged(descriptor, limit, now_ms)
        landed, count, ingested = self._intake.run(descriptor, limit, now_ms, until_ms)
        if ingested is not None:
            self._land(count, ingested)
        self._clocks.follow(lambda _: None, now_ms)
        return landed + count

    def _take_judged(self, descriptor: int, limit: int, now_ms: int) -> int:
        """Receive one batch with the credentials of its senders."""
        landing.ask_for_senders(self._slab, min(limit, self._slab.geometry.landing_slots))
        count = self._receiver.receive(descriptor, limit)
        if count:
            self.admit(count, now_ms)
        return count

    def admit(self, count: int, now_ms: int, skip: frozenset[int] = frozenset()) -> None:
        """Admit the first `count` datagrams of the landing zone; the arrivals in `skip` are in lanes already."""
        self._row.open_books()
        base = self._base
        decision = AdmissionDecision()
        if self._senders is not None and self._senders.matter:
            decision = decide_admission(self._senders, self._slab, count, now_ms, {each - base for each in skip})
        elif self._clocks.is_searching(now_ms):
            decision = AdmissionDecision(landing.senders_of(self._slab, count))
        passed_over = skip.union(base + slot for slot in decision.refused)
        self._land(count, self._lanes.ingest_landed(count, self._longest, now_ms, passed_over), skip, decision)
        if self._senders is not None:
            decision.record(self._senders, now_ms)
        self._clocks.follow(lambda arrival: decision.peer(arrival - base), now_ms)

    @property
    def _base(self) -> int:
        """Return the arrival number of the first datagram in the landing zone."""
        return self._slab.longs[landing.base_at(self._slab) >> 3]

    def _land(
        self,
        count: int,
        ingested: Ingested,
        skip: frozenset[int] = frozenset(),
        decision: AdmissionDecision | None = None,
    ) -> None:
        """Report discarded messages and land the batch."""
        decision = decision or AdmissionDecision()
        view, base = self._slab.view, self._base
        landed = landing.landed_places(self._slab) if refused(ingested) or skip or decision.refused else []
        for rejection in ingested.rejections:
            report(self._reporter, rejection, view, landed[rejection.slot], decision.peer(rejection.slot))
        for dropped in ingested.no_room:
            report_no_room(self._reporter, dropped, view, landed[dropped.arrival - base], dropped.reason)
        for slot, reason in decision.refused.items():
            report_refused(self._reporter, reason, decision.peer(slot), view, landed[slot])
        recovered = [self._api_key(landed[arrival - base][0]) for arrival in skip]
        self._row.land(count, tally(count, ingested, recovered, decision.refused.values()))

    def _api_key(self, at: int) -> int:
        return int.from_bytes(self._slab.view[at + 4 : at + 6], "big")

    def recover(self, owner: int, now_ms: int) -> list[Segment]:
        """Finish a dead predecessor's open runs and landing zone; return the runs that the router must hear of.

        The input calls this before it receives anything.
        """
        close_open_runs(self._slab, owner)
        landed = len(landing.landed_lengths(self._slab))
        if landed:
            self._lanes.resume_cut(cuts_from(self._slab, self._base))
            self.admit(landed, now_ms, arrivals_from(self._slab, self._base))
        self._lanes.close_all()
        self._lanes.drain_closed()
        return [found.segment for found in sweep_filled(self._slab)]


def tally(
    received: int, ingested: Ingested, recovered: Iterable[int] = (), not_let_in: Collection[DiscardReason] = ()
) -> dict[int, int]:
    """Return the amount by which a batch raises each counter.

    `recovered` are the API keys of messages that a predecessor had copied.  `not_let_in` has the reasons for refused
    messages, which are not in `ingested`.
    """
    raises = tally_ingested(received, ingested, [dropped.reason for dropped in ingested.no_room])
    raises[Counter.UnixDgInputAgentForwardMsg] += received - refused(ingested) - len(not_let_in)
    for reason in not_let_in:
        raises[discarded(reason)] += 1
        raises[REFUSED[reason]] += 1
    for api_key in recovered:
        raises[RECOGNISED[api_key]] += 1
    return +raises
