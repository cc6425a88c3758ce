"""What the broker counted: the ground truth that a test compares a producer's own books with."""

from __future__ import annotations

import msgspec

__all__ = ["Statistics"]


class Statistics(msgspec.Struct, kw_only=True):
    """Counters since the start.  `records` and `bytes` count what was appended, duplicates not included."""

    connections: int = 0
    requests: dict[str, int] = {}
    """By name of the API, faults or not."""
    batches: int = 0
    records: int = 0
    bytes: int = 0
    duplicates: int = 0
    """Batches that repeated a remembered one: acknowledged, not appended."""
    sequence_errors: int = 0
    """Batches refused with 45 or 47."""
    errors: dict[int, int] = {}
    """By error code: partitions of Produce requests that were answered with it, scripted or not."""
    faults: dict[str, int] = {}
    """By action: how often a scripted fault struck."""
    dropped_batches: int = 0
    """Batches that retention took away."""
    held_bytes: int = 0
    """What all logs hold now, the objects around the batches included."""
