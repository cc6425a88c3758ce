"""A batch of datagrams on its way through the input: from the landing zone into lanes, counted in one transaction.

The order makes it safe to die anywhere: first the records are in lanes (each whole or not at all), then one
transaction counts the batch and empties the landing zone, then the router hears of the runs.  Until the transaction a
recovery finds the batch in the landing zone and knows by the arrival numbers which of it was copied.

A datagram that is longer than allowed is malformed whatever its bytes say; the kernel may have cut it so that they look
right.  For the parser it has no bytes at all.
"""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bruce_mp.errors import DiscardReason
from bruce_mp.kernels import Failure
from bruce_mp.protocol.client_wire import Message, parse_message
from bruce_mp.slab import landing
from bruce_mp.slab.layout import State
from bruce_mp.slab.recovery import arrivals_from, close_open_runs, sweep
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bruce_mp.kernels import Ingested, Lanes, NoRoom, Rejection
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import Row
    from bruce_mp.slab.runs import Segment
    from bruce_mp.telemetry.discards import DiscardReporter

__all__ = ["Admission"]

_ANY_PARTITION: Final = 256
_PARTITION_KEY: Final = 257
_FAILED: Final[Mapping[Failure, Counter]] = {
    Failure.MALFORMED: Counter.InputAgentDiscardMsgMalformed,
    Failure.UNSUPPORTED_API_KEY: Counter.InputAgentDiscardMsgUnsupportedApiKey,
}
_BAD_VERSION: Final[Mapping[int, Counter]] = {
    _ANY_PARTITION: Counter.InputAgentDiscardAnyPartitionMsgUnsupportedApiVersion,
    _PARTITION_KEY: Counter.InputAgentDiscardPartitionKeyMsgUnsupportedApiVersion,
}
_RECOGNISED: Final[Mapping[int, Counter]] = {
    _ANY_PARTITION: Counter.InputAgentProcessAnyPartitionMsg,
    _PARTITION_KEY: Counter.InputAgentProcessPartitionKeyMsg,
}


class Admission:
    """Takes what is in the landing zone in.  `longest` is how long a datagram may be."""

    def __init__(self, slab: Slab, row: Row, lanes: Lanes, reporter: DiscardReporter, *, longest: int) -> None:
        self._slab = slab
        self._row = row
        self._lanes = lanes
        self._reporter = reporter
        self._longest = min(longest, slab.geometry.landing_slot_size)

    def admit(self, count: int, now_ms: int, skip: frozenset[int] = frozenset()) -> None:
        """Take the first `count` datagrams of the landing zone in; the arrivals in `skip` are in lanes already."""
        self._row.open_books()
        ingested = self._lanes.ingest_landed(count, self._longest, now_ms, skip)
        for rejection in ingested.rejections:
            self._report(rejection)
        for dropped in ingested.no_room:
            self._report_no_room(dropped)
        recovered = [self._api_key(self._place(arrival)[0]) for arrival in skip]
        self._row.land(count, tally(count, ingested, recovered))

    def _api_key(self, at: int) -> int:
        return int.from_bytes(self._slab.view[at + 4 : at + 6], "big")

    def _place(self, arrival: int) -> tuple[int, int]:
        """Where the datagram with an arrival number lies, and how long it is."""
        return landing.landed_places(self._slab)[arrival - self._slab.longs[landing.base_at(self._slab) >> 3]]

    def _report(self, rejection: Rejection) -> None:
        at, length = landing.landed_places(self._slab)[rejection.slot]
        size = self._reporter.sample_size
        sample = bytes(self._slab.view[at : at + (length if size is None else min(length, size))])
        version = rejection.version if rejection.failure is Failure.UNSUPPORTED_VERSION else None
        api_key = rejection.api_key if rejection.failure is Failure.UNSUPPORTED_API_KEY else None
        self._reporter.note(DiscardReason(rejection.failure), sample=sample, version=version, api_key=api_key)

    def _report_no_room(self, dropped: NoRoom) -> None:
        self._reporter.note(DiscardReason.NO_MEM, topic=dropped.topic, timestamp=dropped.timestamp)
        if self._reporter.keeps_copies:
            at, length = self._place(dropped.arrival)
            message = parse_message(self._slab.view[at : at + length])
            assert isinstance(message, Message)  # else it would have been rejected
            size = self._reporter.copy_size
            shortened = replace(message, key=message.key[:size], value=message.value[:size])
            self._reporter.copy(DiscardReason.NO_MEM, [shortened])

    def recover(self, owner: int, now_ms: int) -> list[Segment]:
        """Finish what a dead predecessor left: its open runs, its landing zone.  The runs that the router must hear of.

        Must come before anything else is taken in.
        """
        close_open_runs(self._slab, owner)
        landed = len(landing.landed_lengths(self._slab))
        if landed:
            base = self._slab.longs[landing.base_at(self._slab) >> 3]
            self.admit(landed, now_ms, arrivals_from(self._slab, base))
        self._lanes.close_all()
        self._lanes.drain_closed()
        return [found.segment for found in sweep(self._slab, {State.FILLED})]


def tally(received: int, ingested: Ingested, recovered: Iterable[int] = ()) -> dict[int, int]:
    """By how much a batch raises which counter; `recovered` are the API keys of what a predecessor had copied."""
    any_partition, partition_key, rejections, no_room = ingested
    raises: Tally[int] = Tally({Counter.MsgReceived: received})
    raises[_RECOGNISED[_ANY_PARTITION]] = any_partition
    raises[_RECOGNISED[_PARTITION_KEY]] = partition_key
    _tally_rejected(raises, rejections)
    _tally_dropped(raises, no_room)
    raises[Counter.UnixDgInputAgentForwardMsg] = received - len(rejections) - len(no_room)
    for api_key in recovered:
        raises[_RECOGNISED[api_key]] += 1
    return {counter: amount for counter, amount in raises.items() if amount}


def _tally_rejected(raises: Tally[int], rejections: list[Rejection]) -> None:
    for rejection in rejections:
        raises[discarded(DiscardReason(rejection.failure))] += 1
        raises[_FAILED.get(rejection.failure) or _BAD_VERSION[rejection.api_key]] += 1
        if rejection.api_key in _RECOGNISED:
            raises[_RECOGNISED[rejection.api_key]] += 1


def _tally_dropped(raises: Tally[int], no_room: list[NoRoom]) -> None:
    if no_room:
        raises[discarded(DiscardReason.NO_MEM)] += len(no_room)
        raises[Counter.InputAgentDiscardMsgNoMem] += len(no_room)
