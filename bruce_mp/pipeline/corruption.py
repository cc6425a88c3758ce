"""Quarantine of damaged records in the slab.

Damaged records stay in place and keep their holder, because their contents cannot be trusted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from bruce_mp import kernels
from bruce_mp.errors import SlabError
from bruce_mp.slab.runs import segment_words
from bruce_mp.telemetry.counters import Counter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bruce_mp.slab.file import Slab
    from bruce_mp.slab.rows import ProcessRow
    from bruce_mp.slab.runs import Segment

__all__ = ["is_undamaged", "quarantine", "without_damaged"]

log = logging.getLogger(__name__)


def quarantine(row: ProcessRow, error: SlabError) -> None:
    """Count and log a place with damaged records; `error` names the place."""
    row.add(Counter.RefusedDamagedPlace)
    log.error("%s Its messages are not delivered; `bruce slab inspect` shows more.", error, extra={"about": "damage"})


def is_undamaged(slab: Slab, segment: Segment) -> bool:
    """Return True if the headers of all records of a segment can be read."""
    try:
        kernels.time_range(slab, segment)  # called only because it reads and checks every header
    except SlabError:
        return False
    return True


def without_damaged(slab: Slab, row: ProcessRow, segments: Iterable[Segment]) -> list[Segment]:
    """Quarantine each segment if its state words cannot be found. Return the other segments.

    A run that was not split has only one state word, in the run's header. In such a run, the function does not detect
    damaged records; `is_undamaged` does.
    """
    undamaged: list[Segment] = []
    for segment in segments:
        try:
            segment_words(slab, segment)
        except SlabError as error:
            quarantine(row, error)
        else:
            undamaged.append(segment)
    return undamaged
