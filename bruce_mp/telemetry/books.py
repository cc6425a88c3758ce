"""The books: received = delivered + discarded (by reason) + held (by stage), read from the slab.

`read_books` reads only the counters in the process rows (`telemetry/stages.py`), so its cost does not grow with the
number of messages.  `pipeline/stage_counts.py` instead counts the held messages by the state words of their records,
and the status process compares both results (`status/books_check.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.telemetry.counters import Counter, discarded
from bruce_mp.telemetry.stages import held_by_stage, read_rows, used_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bruce_mp.slab.file import Slab

__all__ = [
    "Books",
    "balance_line",
    "books_of",
    "counter_by_row",
    "counter_total",
    "read_books",
    "row_counters",
    "row_integers",
    "spilled_total",
]


class Books(msgspec.Struct, frozen=True):
    """A reading of the books.

    `discarded` has numbers of messages by reason, `held` by stage. If `consistent` is False, the reading may show an
    imbalance that the books do not have; see `read_books`.
    """

    received: int
    delivered: int
    discarded: dict[str, int]
    held: dict[str, int]
    possible_duplicates: int
    consistent: bool
    checked: int = 0
    """The time of the last comparison of `held` with the records in the slab, in ms since the epoch; 0 = never."""
    unaccounted: int = 0
    """The number of messages by which that comparison found `held` and the records to differ."""

    @property
    def balanced(self) -> bool:
        """Return True if received = delivered + discarded + held, no stage is negative, and the last check passed."""
        held = self.held.values()
        is_equal = self.received == self.delivered + sum(self.discarded.values()) + sum(held)
        return is_equal and min(held) >= 0 and not self.unaccounted


def read_books(slab: Slab) -> Books:
    """Read the books from the process rows.

    An input hands over a batch in parts, and counts the messages of the batch as received after the last part.  If
    messages of the first parts are delivered before that, the number of messages in a stage is negative, and the
    reading is inconsistent.
    """
    rows = read_rows(slab)
    held = held_by_stage(rows)
    is_ahead = min(held.values()) < 0 and any(row.has_open_batch for row in rows)  # deliveries are ahead of receipts
    used = used_rows(rows) or rows[:1]  # `zip` needs at least one row
    return books_of(
        [sum(values) for values in zip(*(row.counters for row in used), strict=True)],
        held,
        is_consistent=not is_ahead and all(row.is_consistent for row in rows),
    )


def books_of(counters: Sequence[int], held: dict[str, int], *, is_consistent: bool) -> Books:
    """Build the books from the sum of each counter over all rows, and the number of held messages by stage.

    The index of a sum in `counters` is the number of its counter.
    """
    reasons = {reason.name: counters[discarded(reason)] for reason in DiscardReason}
    return Books(
        received=counters[Counter.MsgReceived],
        delivered=counters[Counter.MsgDelivered],
        discarded={name: count for name, count in reasons.items() if count},
        held=held,
        possible_duplicates=counters[Counter.PossibleDuplicateMsg],
        consistent=is_consistent,
    )


def row_integers(slab: Slab, offset: int) -> list[int]:
    """Return the 64-bit integer at byte `offset` of each process row."""
    start = (slab.geometry.rows_at + offset) >> 3
    step = lay.ROW_BYTES >> 3
    return slab.longs[start : start + slab.geometry.rows * step : step].tolist()


def counter_by_row(slab: Slab, counter: int) -> list[int]:
    return row_integers(slab, lay.ROW_COUNTERS + 8 * counter)


def row_counters(slab: Slab, row: int) -> list[int]:
    start = (slab.row_at(row) + lay.ROW_COUNTERS) >> 3
    return slab.longs[start : start + lay.ROW_COUNTER_CAPACITY].tolist()


def counter_total(slab: Slab, counter: int) -> int:
    return sum(counter_by_row(slab, counter))


def spilled_total(slab: Slab) -> int:
    """Return the number of messages that are in spill files."""
    return counter_total(slab, lay.SPILL_IN) - counter_total(slab, lay.SPILL_OUT)


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
    unaccounted = f"; {books.unaccounted} unaccounted for" if books.unaccounted else ""
    return f"received {books.received} {relation} {' + '.join(parts)}{unaccounted}"


def _sum_with_parts(name: str, parts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{part} {count}" for part, count in sorted(parts.items()) if count)
    return f"{name} {sum(parts.values())}" + (f" ({listed})" if listed else "")
