"""Process rows: counters with one writer each, and transactions that a crash cannot leave half done.

A process that settles records (marks them delivered or discarded), or moves them to another stage (to another process
or queue), changes their state words and its own counters in one transaction.  It first writes a *redo record*: the new
values of the counters, and the segments (neighboring records) with their outcome.  Then it marks the redo record
valid, applies it, and marks it void.  After a crash, the successor or the supervisor applies a valid redo record again,
so every step must be repeatable.

The row's `version` is odd during a transaction, so that a reader of the counters detects an inconsistent snapshot.  An
input's version stays odd from `begin_batch` until the input commits the batch, even if the input dies in between.

A redo record consists of

    u32    1 if the redo record is valid
    u32    to settle: the outcome (DELIVERED or DISCARDED); to move: the state word after the move
    u32    to settle: the reason of a discard, or 0; to move: the state word before the move
    u32    number of counters
    u32    number of segments
    u32    number of landing slots to empty
    u64    if there are slots to empty: the landing zone's new base; else a stream input's new ROW_COUNTED, 0 = keep it
    space for 32 pairs of (u64 number of a counter, u64 new value)
    the segments, each as in `runs.SEGMENT`
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from bruce_mp.errors import SlabError
from bruce_mp.slab import landing_zone
from bruce_mp.slab import layout as lay
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import SEGMENT, is_current, matching_words, pack_segments, segment_words, unpack_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.runs import Segment

__all__ = ["MAX_SETTLED_SEGMENTS", "Move", "ProcessRow", "redo_counters", "settle_words"]

_REDO: Final = Struct("<IIIIIIQ")
_PAIR: Final = Struct("<QQ")
_MAX_COUNTERS: Final = 32
"""Maximum number of counters in one transaction; no process raises so many at once."""
_MAX_UINT64: Final = (1 << 64) - 1
HEARTBEAT_S: Final = 1.0
"""Interval of heartbeats; the supervisor's watchdog kills a process that stores none for a minute."""

MAX_SETTLED_SEGMENTS: Final = (lay.ROW_REDO_BYTES - _REDO.size - _MAX_COUNTERS * _PAIR.size) // SEGMENT.size
"""The largest number of segments in one transaction, and so in one record batch."""


class Move(NamedTuple):
    """A move of messages to another stage: their state word before and after it, and the counter of moved messages."""

    before: int
    after: int
    counter: int


class ProcessRow:
    """The row `index` in the slab.

    To open the row of a process that starts or has died, call `recover`, which finishes the row's last transaction.
    """

    def __init__(self, slab: Slab, index: int) -> None:
        self._slab = slab
        self._at = slab.row_at(index)
        start = (self._at + lay.ROW_COUNTERS) >> 3
        self.counters = slab.longs[start : start + lay.ROW_COUNTER_CAPACITY]
        self._is_stream = index in lay.STREAM_ROWS

    @classmethod
    def recover(cls, slab: Slab, index: int) -> Self:
        """Finish the transaction that a dead process left in row `index`, and return the row.

        No other process may write the row during the call.  A second call changes nothing.
        """
        row = cls(slab, index)
        row._apply_redo()
        if row.version & 1 and not row._is_stream and not landing_zone.landed_lengths(slab):
            # The dead datagram input called `begin_batch`, but received no batch that its successor could commit, so
            # the version must become even here.  For a stream input, the recovery's `commit_counted` makes it even.
            slab.longs[(row._at + lay.ROW_VERSION) >> 3] += 1
        return row

    def begin(self, pid: int, now_ms: int, heartbeat_ms: int = 0) -> int:
        """Store the pid, the start time and the first heartbeat of the process, and return its incarnation.

        `now_ms` is in ms since 1970, because pages show it; `heartbeat_ms` is a steady time.
        """
        # An incarnation has 24 bits, because state words contain it as the holder.
        incarnation = (self._slab.words[(self._at + lay.ROW_INCARNATION) >> 2] + 1) & 0xFFFFFF
        self._slab.words[(self._at + lay.ROW_INCARNATION) >> 2] = incarnation
        # By this value `stage_counts` knows that the process counts its moves.
        self._slab.words[(self._at + lay.ROW_COUNTING) >> 2] = incarnation
        self._slab.words[(self._at + lay.ROW_PID) >> 2] = pid
        self._slab.store_signed(self._at + lay.ROW_STARTED_MS, now_ms)
        self._slab.store_signed(self._at + lay.ROW_HEARTBEAT_MS, heartbeat_ms)
        return incarnation

    @property
    def pid(self) -> int:
        return self._slab.words[(self._at + lay.ROW_PID) >> 2]

    @property
    def version(self) -> int:
        return self._slab.longs[(self._at + lay.ROW_VERSION) >> 3]

    def start_heartbeat(
        self, call_later: Callable[[float, Callable[[], None]], object], now_ms: Callable[[], int]
    ) -> None:
        """Store a heartbeat now and about every second; `call_later(seconds, callback)` is the loop's timer."""

        def repeat() -> None:
            self.store_heartbeat(now_ms())
            call_later(HEARTBEAT_S, repeat)

        repeat()

    def store_heartbeat(self, now_ms: int) -> None:
        """Store a heartbeat.  A process calls this during long work, because the watchdog needs regular heartbeats."""
        self._slab.store_signed(self._at + lay.ROW_HEARTBEAT_MS, now_ms)

    def add(self, counter: int, amount: int = 1) -> None:
        """Raise a counter without a transaction.  Counters of the books (received, delivered, discarded) need one."""
        self.counters[counter] += amount

    def settle(
        self, segments: Sequence[Segment], outcome: RunState, reason: int, increments: Mapping[int, int]
    ) -> None:
        """Settle segments and raise counters in one transaction; `increments` maps counters to addends.

        `reason` is a DiscardReason, 0 for delivered segments.  Raises SlabError, and changes nothing, if there are more
        than MAX_SETTLED_SEGMENTS segments, or if a segment disagrees with the headers of its chunk and run.
        """
        if len(segments) > MAX_SETTLED_SEGMENTS:
            raise SlabError(f"One transaction settles at most {MAX_SETTLED_SEGMENTS} segments, not {len(segments)}.")
        self._transact(increments, outcome=outcome, reason=reason, segments=segments)

    def move(self, segments: Iterable[Segment], move: Move) -> list[Segment]:
        """Store `move.after` in the state words of segments, raise the move's counter, and return the moved segments.

        The call skips damaged segments, and segments with another state word than `move.before`.
        """
        moved = [segment for segment in segments if matching_words(self._slab, segment, move.before)]
        for start in range(0, len(moved), MAX_SETTLED_SEGMENTS):
            part = moved[start : start + MAX_SETTLED_SEGMENTS]
            message_count = sum(segment.records for segment in part)
            self._transact({move.counter: message_count}, outcome=move.after, reason=move.before, segments=part)
        return moved

    def commit_landed(self, landed: int, increments: Mapping[int, int]) -> None:
        """Empty the first `landed` slots of the landing zone and raise counters in one transaction."""
        base = self._slab.longs[landing_zone.base_at(self._slab) >> 3]
        self._transact(increments, landed=landed, base=base + landed)

    @property
    def counted(self) -> int:
        """Return the number of messages that a stream input and its predecessors have counted as received."""
        return self._slab.longs[(self._at + lay.ROW_COUNTED) >> 3]

    def commit_counted(self, counted: int, increments: Mapping[int, int]) -> None:
        """Raise a stream input's `counted` to this number, and raise counters, in one transaction."""
        self._transact(increments, base=counted)

    def begin_batch(self) -> None:
        """Make the version odd, because the slab has records that are not counted until the batch is committed."""
        self._slab.longs[(self._at + lay.ROW_VERSION) >> 3] |= 1

    def _transact(
        self,
        increments: Mapping[int, int],
        *,
        outcome: int = RunState.DELIVERED,
        reason: int = 0,
        segments: Sequence[Segment] = (),
        landed: int = 0,
        base: int = 0,
    ) -> None:
        """Write a redo record and apply it.

        For a move, `outcome` and `reason` are the state words after and before it.  `landed` is the number of landing
        slots to empty, and `base` the landing zone's new base; without slots, `base` is the new ROW_COUNTED.
        """
        if len(increments) > _MAX_COUNTERS:
            raise SlabError(f"One transaction raises at most {_MAX_COUNTERS} counters, not {len(increments)}.")
        for segment in segments:
            segment_words(self._slab, segment)  # raises SlabError if damaged, before the redo record is valid
        at, view = self._at + lay.ROW_REDO, self._slab.view
        _REDO.pack_into(view, at, 0, outcome, reason, len(increments), len(segments), landed, base)
        values = [(counter, self.counters[counter] + amount & _MAX_UINT64) for counter, amount in increments.items()]
        pairs = b"".join([_PAIR.pack(*pair) for pair in values])
        view[at + _REDO.size : at + _REDO.size + len(pairs)] = pairs
        packed = pack_segments(segments)
        view[at + _SEGMENTS_AT : at + _SEGMENTS_AT + len(packed)] = packed
        self._slab.words[at >> 2] = 1
        self._apply_redo()

    def _apply_redo(self) -> None:
        """Apply the redo record if it is valid."""
        at = self._at + lay.ROW_REDO
        is_valid, outcome, reason, counter_count, segment_count, slot_count, base = _REDO.unpack_from(
            self._slab.view, at
        )
        if not is_valid:
            return
        version_index = (self._at + lay.ROW_VERSION) >> 3
        self._slab.longs[version_index] |= 1
        packed = self._slab.view[at + _SEGMENTS_AT : at + _SEGMENTS_AT + segment_count * SEGMENT.size]
        if RunState(outcome & 0xFF) in lay.SETTLED:
            settle_words(self._slab, unpack_segments(packed), RunState(outcome), reason)
        else:
            _move_words(self._slab, unpack_segments(packed), before=reason, after=outcome)
        for pair_at in range(at + _REDO.size, at + _REDO.size + counter_count * _PAIR.size, _PAIR.size):
            counter, value = _PAIR.unpack_from(self._slab.view, pair_at)
            self.counters[counter] = value
        if slot_count:
            landing_zone.empty_slots(self._slab, slot_count)
            self._slab.longs[landing_zone.base_at(self._slab) >> 3] = base
        elif base:
            self._slab.longs[(self._at + lay.ROW_COUNTED) >> 3] = base
        # The redo record becomes void last.  If the version became even last, a crash in between would leave it odd.
        self._slab.longs[version_index] += 1
        self._slab.words[at >> 2] = 0


_SEGMENTS_AT: Final = _REDO.size + _MAX_COUNTERS * _PAIR.size
"""Offset of the segments in a redo record, behind the space for the pairs."""


def settle_words(slab: Slab, segments: Sequence[Segment], outcome: RunState, reason: int) -> None:
    """Store the outcome in the state words of segments that this process holds.

    A repeated transaction skips records that are settled already, because an input may have reused their chunk for
    other records.  A chunk with an unsettled record cannot be reused during the call.
    """
    for segment in segments:
        try:
            indexes = segment_words(slab, segment)
        except SlabError:
            continue
        unsettled = [index for index in indexes if slab.words[index] & 0xFF not in lay.SETTLED]
        # Check the generation after the read of the words: if it matches, the words are those of the segment, and the
        # chunk cannot be reused while one of them is unsettled.
        if is_current(slab, segment):
            run_at = slab.chunk_at(segment.chunk) + segment.run
            for index in unsettled:
                at = index << 2  # the file offset of the run's header, or of the header of a record in a split run
                if reason:
                    slab.view[at + (lay.RUN_REASON if at == run_at else lay.RECORD_REASON)] = reason
                slab.words[index] = outcome


def _move_words(slab: Slab, segments: Iterable[Segment], before: int, after: int) -> None:
    """Replace the state word `before` by `after` in segments of this process.

    A repeated transaction finds `after` in the words that it has stored already, and skips them.  Only this process
    changes a state word `before`, and no other process stores that word.
    """
    for segment in segments:
        try:
            indexes = [index for index in segment_words(slab, segment) if slab.words[index] == before]
        except SlabError:
            continue
        if is_current(slab, segment):  # the generation is checked after the words, as in `settle_words`
            for index in indexes:
                slab.words[index] = after


def redo_counters(slab: Slab, row: int) -> dict[int, int]:
    """Return the new value of each counter in a row's redo record, valid or not."""
    at = slab.row_at(row) + lay.ROW_REDO
    _, _, _, counter_count, _, _, _ = _REDO.unpack_from(slab.view, at)
    count = min(counter_count, _MAX_COUNTERS)  # the redo record may be damaged
    return dict(_PAIR.iter_unpack(slab.view[at + _REDO.size : at + _REDO.size + count * _PAIR.size]))
