"""The books: received = delivered + discarded (by reason) + held (by stage), read from the slab.

`held` is counted from the states of the records, never computed as the difference.  A reading is consistent when no
process was inside a transaction and no book counter moved while the records were counted; a few tries are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunks import all_runs
from bruce_mp.slab.layout import State
from bruce_mp.slab.runs import name_of, records_of
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab

__all__ = ["STAGES", "Books", "held_by_topic", "read_books"]

STAGES: Final[dict[State, str]] = {
    State.OPEN: "input",
    State.FILLED: "router",
    State.ROUTED: "router",
    State.ROUTED_SENT: "router",
    State.RETURNED: "router",
    State.RETURNED_SENT: "router",
    State.ASSIGNED: "queued",
    State.ASSIGNED_SENT: "queued",
    State.QUEUED: "queued",
    State.IN_FLIGHT: "in_flight",
}
"""Which stage holds a record in a state."""

_TRIES: Final = 5


class Books(msgspec.Struct, frozen=True):
    """A reading of the books."""

    received: int
    delivered: int
    discarded: dict[str, int]
    held: dict[str, int]
    possible_duplicates: int
    consistent: bool

    @property
    def balanced(self) -> bool:
        """Whether every message received is accounted for."""
        return self.received == self.delivered + sum(self.discarded.values()) + sum(self.held.values())


def read_books(slab: Slab) -> Books:
    """Read the books, consistently if the traffic allows."""
    books = _read_once(slab)
    for _ in range(_TRIES - 1):
        if books.consistent:
            break
        books = _read_once(slab)
    return books


def _read_once(slab: Slab) -> Books:
    before = _moving(slab)
    reasons = {reason.name: total(slab, discarded(reason)) for reason in DiscardReason}
    received, delivered = total(slab, Counter.MsgReceived), total(slab, Counter.MsgDelivered)
    held = _count_held(slab)
    return Books(
        received=received,
        delivered=delivered,
        discarded={name: count for name, count in reasons.items() if count},
        held=held,
        possible_duplicates=total(slab, Counter.PossibleDuplicateMsg),
        consistent=before == _moving(slab) and not any(version & 1 for version in before),
    )


def _rows(slab: Slab) -> range:
    first = slab.geometry.rows_at
    return range(first, first + lay.ROW_COUNT * lay.ROW_BYTES, lay.ROW_BYTES)


def _moving(slab: Slab) -> list[int]:
    return [slab.longs[(row + lay.ROW_VERSION) >> 3] for row in _rows(slab)]


def total(slab: Slab, counter: int) -> int:
    """A counter over all processes."""
    return sum(slab.longs[(row + lay.ROW_COUNTERS + 8 * counter) >> 3] for row in _rows(slab))


def _count_held(slab: Slab) -> dict[str, int]:
    held = dict.fromkeys(STAGES.values(), 0)
    for stages in held_by_topic(slab).values():
        for stage, count in stages.items():
            held[stage] += count
    return held


def held_by_topic(slab: Slab) -> dict[bytes | int, dict[str, int]]:
    """Records that the daemon holds: per topic (its number, or its name while it has none) and stage."""
    held: dict[bytes | int, dict[str, int]] = {}
    for chunk, offset, run in all_runs(slab):
        topic = run.topic or name_of(slab, chunk, offset, run)
        if run.state in STAGES:
            _add(held, topic, run.state, run.records)
        elif run.state is State.SPLIT:
            for _, record in records_of(slab, chunk, offset, run):
                _add(held, topic, State(record.word & 0xFF), 1)
    return held


def _add(held: dict[bytes | int, dict[str, int]], topic: bytes | int, state: State, records: int) -> None:
    if state in STAGES:
        stages = held.setdefault(topic, {})
        stages[STAGES[state]] = stages.get(STAGES[state], 0) + records
