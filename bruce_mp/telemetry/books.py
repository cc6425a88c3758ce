"""The books: received = delivered + discarded (by reason) + held (by stage), read from the slab.

Held messages are counted from the state words of the records, never computed as the difference. A reading is consistent
if no transaction was open and no process row changed during the count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.chunk_readers import read_each, until_damage
from bruce_mp.slab.layout import RunState
from bruce_mp.slab.runs import name_of, records_of, runs_of
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bruce_mp.slab.file import Slab

__all__ = [
    "SPILLED",
    "STAGES",
    "Books",
    "balance_line",
    "counter_by_row",
    "counter_total",
    "held_by_topic",
    "read_books",
    "spilled_total",
]

STAGES: Final[dict[RunState, str]] = {
    RunState.OPEN: "input",
    RunState.FILLED: "router",
    RunState.ROUTED: "router",
    RunState.ROUTED_SENT: "router",
    RunState.RETURNED: "router",
    RunState.RETURNED_SENT: "router",
    RunState.ASSIGNED: "queued",
    RunState.ASSIGNED_SENT: "queued",
    RunState.QUEUED: "queued",
    RunState.IN_FLIGHT: "in_flight",
}
"""Stage of a record in each state; the names stand for input, router, and the dispatcher's two stages."""
SPILLED: Final = "spill"
"""Stage of messages in spill files, which are not in the slab."""

_MAX_READINGS: Final = 5


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
        """Return True if received = delivered + discarded + held."""
        return self.received == self.delivered + sum(self.discarded.values()) + sum(self.held.values())


def read_books(slab: Slab) -> Books:
    """Read the books, up to `_MAX_READINGS` times until a reading is consistent."""
    books = _read_once(slab)
    for _ in range(_MAX_READINGS - 1):
        if books.consistent:
            break
        books = _read_once(slab)
    return books


def _read_once(slab: Slab) -> Books:
    before = _versions(slab)
    reasons = {reason.name: counter_total(slab, discarded(reason)) for reason in DiscardReason}
    received, delivered = counter_total(slab, Counter.MsgReceived), counter_total(slab, Counter.MsgDelivered)
    held = _count_held(slab)
    return Books(
        received=received,
        delivered=delivered,
        discarded={name: count for name, count in reasons.items() if count},
        held=held,
        possible_duplicates=counter_total(slab, Counter.PossibleDuplicateMsg),
        consistent=before == _versions(slab) and not any(version & 1 for version in before),
    )


def _row_integers(slab: Slab, offset: int) -> list[int]:
    """Return the 64-bit integer at byte `offset` of each process row."""
    first = (slab.geometry.rows_at + offset) >> 3
    step = lay.ROW_BYTES >> 3
    return slab.longs[first : first + lay.ROW_COUNT * step : step].tolist()


def _versions(slab: Slab) -> list[int]:
    return _row_integers(slab, lay.ROW_VERSION)


def counter_by_row(slab: Slab, counter: int) -> list[int]:
    """Return a counter of each process."""
    return _row_integers(slab, lay.ROW_COUNTERS + 8 * counter)


def counter_total(slab: Slab, counter: int) -> int:
    """Return a counter summed over all processes."""
    return sum(counter_by_row(slab, counter))


def spilled_total(slab: Slab) -> int:
    """Return the number of messages in spill files."""
    return counter_total(slab, lay.SPILL_IN) - counter_total(slab, lay.SPILL_OUT)


def _count_held(slab: Slab) -> dict[str, int]:
    held = {**dict.fromkeys(STAGES.values(), 0), SPILLED: spilled_total(slab)}
    for stages in held_by_topic(slab).values():
        for stage, count in stages.items():
            held[stage] += count
    return held


def held_by_topic(slab: Slab) -> dict[bytes | int, dict[str, int]]:
    """Count the held records by topic and stage; the key of a topic is its number, or its name if it has none."""
    held: dict[bytes | int, dict[str, int]] = {}
    for topic, state, records in read_each(slab, lambda chunk: _counts_in(slab, chunk)):
        if state in STAGES:
            stages = held.setdefault(topic, {})
            stages[STAGES[state]] = stages.get(STAGES[state], 0) + records
    return held


def _counts_in(slab: Slab, chunk: int) -> Iterator[tuple[bytes | int, RunState, int]]:
    """Yield topic, state and number of records for each run of a chunk, or for each record of a split run."""
    for offset, run in runs_of(slab, chunk):
        topic = run.topic or name_of(slab, chunk, offset, run)
        if run.state is not RunState.SPLIT:
            yield topic, run.state, run.records
            continue
        for _, record in until_damage(records_of(slab, chunk, offset, run)):
            yield topic, RunState(record.word & 0xFF), 1


def balance_line(books: Books) -> str:
    """Return the equation of the books, with `!=` if they do not balance.

    received 9 = delivered 5 + discarded 3 (BAD_TOPIC 2, NO_MEM 1) + held 1 (queued 1)
    """
    relation = "=" if books.balanced else "!="
    parts = [
        f"delivered {books.delivered}",
        _sum_with_parts("discarded", books.discarded),
        _sum_with_parts("held", books.held),
    ]
    return f"received {books.received} {relation} {' + '.join(parts)}"


def _sum_with_parts(name: str, parts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{part} {count}" for part, count in sorted(parts.items()) if count)
    return f"{name} {sum(parts.values())}" + (f" ({listed})" if listed else "")
