"""Quarantine of damaged records in the slab.

Damaged records stay in place with their owner, because their contents cannot be trusted.
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
    """Count and log damaged records; `error` names their location."""
    row.add(Counter.RefusedDamagedPlace)
    log.error("%s Its messages are not delivered; `bruce slab inspect` shows more.", error, extra={"about": "damage"})


def is_undamaged(slab: Slab, segment: Segment) -> bool:
    """Return True if the headers of all records of a segment can be read."""
    try:
        kernels.time_range(slab, segment)  # called for its checks only: it reads every header
    except SlabError:
        return False
    return True


def without_damaged(slab: Slab, row: ProcessRow, segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments whose state words can be found, and quarantine the others.

    An unsplit run has one state word, in its header, so damage behind it stays undetected; `is_undamaged` finds it.
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
