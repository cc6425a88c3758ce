"""Recovery of a dead stream worker's row by its successor or the supervisor.

A stream worker can die after it appended messages and before it counted them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bruce_mp.errors import DiscardReason
from bruce_mp.slab import layout as lay
from bruce_mp.slab.fences import finish_release, unreleased
from bruce_mp.slab.layout import State
from bruce_mp.slab.recovery import close_open_runs, uncounted
from bruce_mp.slab.rows import MAX_SETTLED_SEGMENTS
from bruce_mp.telemetry.counters import Counter, discarded

if TYPE_CHECKING:
    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import Row

__all__ = ["finish_stream_input"]


def finish_stream_input(slab: Slab, row: Row, index: int) -> None:
    """Close the runs that the dead process of row `index` left open, and count its uncounted messages.

    Repeating this is harmless. A fenced attempt in the middle of its release is released; the others are discarded.
    """
    close_open_runs(slab, index)
    finish_release(slab, index)
    found = uncounted(slab, index, row.counted)
    keyed = sum(1 for record in found if record.flags & lay.FLAG_PARTITION_KEY)
    raises = {
        Counter.MsgReceived: len(found),
        Counter.InputAgentProcessPartitionKeyMsg: keyed,
        Counter.InputAgentProcessAnyPartitionMsg: len(found) - keyed,
    }
    last = max((lay.stream_number(record.arrival) + 1 for record in found), default=row.counted)
    row.count(max(1, last), {int(counter): number for counter, number in raises.items() if number})
    abandoned = unreleased(slab, index)
    for start in range(0, len(abandoned), MAX_SETTLED_SEGMENTS):
        some = abandoned[start : start + MAX_SETTLED_SEGMENTS]
        reason = DiscardReason.ABANDONED_ATTEMPT
        row.settle(some, State.DISCARDED, reason, {discarded(reason): sum(each.records for each in some)})
